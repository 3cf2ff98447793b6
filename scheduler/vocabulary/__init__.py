"""The words of the scheduler, which import nothing of it.

A `plan` is a model cut into stages, a `placement` the routes through devices that have them; `rows`
and `names` are the devices of a cluster. `messages` go between a deployment's client and its
devices; `events` and instructions are what their two machines receive and ask for; a `record` is
what a request's life leaves, within the `limits` of its deployment.
"""
