"""Value types that all parts of the scheduler share; they import no other part.

`plan`: a model split into stages. `placement`: stages on devices, and routes through them.
`device_descriptor`, `device_names`: the devices of a cluster. `messages`: between the client of a
deployment and its devices. `events`: inputs and instructions of the two state machines.
`request_record`: state and history of a request. `limits`: bounds of a deployment.
"""
