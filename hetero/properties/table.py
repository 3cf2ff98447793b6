"""Table of HETERO's properties, and the distribution of options among HETERO and its devices.

An option of `compile_model` applies to every device that has the property; `DEVICE_PROPERTIES`
applies to single devices; an unknown option is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hetero.devices.errors import UnknownPropertyError
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.properties import (
    COMMON_PROPERTIES,
    Config,
    Property,
    PropertyTable,
    unknown_property,
)
from hetero.properties.log import LOGGING_LEVELS
from hetero.properties.replicas_property import REPLICAS, check_lists_of
from hetero.scheduler.types.device_names import HETERO, match_name
from hetero.scheduler.types.limits import Limits


def _check_callbacks(callbacks: tuple[Any, ...]) -> str | None:
    if callbacks and (len(callbacks) != 2 or not all(callable(c) for c in callbacks)):
        return "expected two functions, (encrypt, decrypt)"
    return None


def _check_shapes(shapes: Mapping[str, Any]) -> str | None:
    for name, shape in shapes.items():
        sizes = shape if isinstance(shape, list | tuple) else ("",)
        if not all(type(size) is int and size >= 0 for size in sizes):
            return f"expected a list of sizes as the shape of {name!r}"
    return None


_LIMITS: Final = Limits()

HETERO_PROPERTIES: Final = PropertyTable(
    Property(
        "MULTI_DEVICE_PRIORITIES",
        tuple,
        (),
        mutable=True,
        doc="Devices in order of priority; the same as a device string.",
    ),
    Property(
        "MODEL_DISTRIBUTION_POLICY",
        str,
        "",
        mutable=True,
        doc="Assignment of nodes to devices: by PRIORITY of the list, as a chain "
        "(PIPELINE_PARALLEL), or by measured costs (AUTO). Empty: AUTO with a PERFORMANCE_HINT, "
        "otherwise PRIORITY.",
        choices=("", "PRIORITY", "PIPELINE_PARALLEL", "AUTO"),
        shapes_result=True,
    ),
    Property(
        "PERFORMANCE_HINT",
        str,
        "",
        mutable=True,
        doc="Objective of plans by cost: time between results (THROUGHPUT, also if empty), or time "
        "of one request (LATENCY).",
        choices=("", "LATENCY", "THROUGHPUT"),
        shapes_result=True,
    ),
    Property(
        "PERFORMANCE_HINT_NUM_REQUESTS",
        int,
        0,
        mutable=True,
        doc="Maximum number of requests that the application has in flight; 0: the optimal number.",
        minimum=0,
    ),
    Property(
        "MODEL_PRIORITY",
        str,
        "MEDIUM",
        mutable=True,
        doc="Priority of the model's requests over those of other models on the same devices; a "
        "request's own `priority` takes precedence.",
        choices=("LOW", "MEDIUM", "HIGH"),
    ),
    Property(
        "LOG_LEVEL",
        str,
        "",
        mutable=True,
        doc="Level of the messages of the logger `hetero` in this process, or of a device's "
        "logger; empty: unchanged. Devices with a property of this name also get it.",
        choices=("", *LOGGING_LEVELS),
    ),
    Property(
        "COST_FILE",
        str,
        "",
        mutable=True,
        doc="File with the costs measured by `hetero profile`; empty: measured when needed.",
    ),
    Property(
        "PROFILE_SECONDS",
        float,
        8.0,
        mutable=True,
        doc="Time limit in seconds for the measurement of costs without a cost file.",
        minimum=0.1,
    ),
    Property(
        "PLAN_SECONDS",
        float,
        5.0,
        mutable=True,
        doc="Time limit in seconds for the search of a plan by cost; it determines the effort. The "
        "plan reports if the time limit ended the search early, on a busy machine.",
        minimum=0.1,
        shapes_result=True,
    ),
    Property(
        "PLAN_SHAPES",
        dict,
        {},
        mutable=True,
        doc="Shapes of inputs with open dimensions for plans by cost: {input: [sizes]}; other open "
        "dimensions are 1.",
        check=_check_shapes,
        shapes_result=True,
    ),
    Property(
        "PLAN_SEED",
        int,
        0,
        mutable=True,
        doc="Seed of the search of a plan by cost.",
        minimum=0,
        shapes_result=True,
    ),
    Property(
        "MAX_SUBGRAPHS",
        int,
        0,
        mutable=True,
        doc="Maximum number of subgraphs of a plan by cost; 0: unlimited.",
        minimum=0,
        shapes_result=True,
    ),
    REPLICAS,
    Property(
        "COLOCATION",
        dict,
        {},
        mutable=True,
        doc="Groups of nodes that a plan by cost puts on one device: {group: [name, op:Type]}.",
        check=check_lists_of("patterns"),
        shapes_result=True,
    ),
    Property(
        "DEVICE_MEMORY_NBYTES",
        dict,
        {},
        mutable=True,
        doc="Bytes that a model may use on a device, by device name; all memory by default. A plan "
        "by cost counts weights only; with FIT_MEMORY all memory of the device's process counts.",
        minimum=0,
        shapes_result=True,
    ),
    Property(
        "FIT_MEMORY",
        bool,
        False,
        mutable=True,
        doc="Whether the plan keeps the predicted memory of each device's process within its "
        "memory. By priority, each device gets as much as fits, the next one the rest.",
        shapes_result=True,
    ),
    Property(
        "DEVICE_PROPERTIES",
        dict,
        {},
        mutable=True,
        doc="Options of single devices: {device name: {property: value}}.",
    ),
    Property(
        "MAX_REQUESTS_IN_FLIGHT",
        int,
        0,
        mutable=True,
        doc="Maximum number of requests in flight; the next ones wait for admission. A batch "
        f"counts as one. 0: the optimal number, at least {_LIMITS.requests}.",
        minimum=0,
    ),
    Property(
        "MAX_SEQUENCES",
        int,
        0,
        mutable=True,
        doc="Maximum number of sequences that are generated at once, if each is as long as the KV "
        "caches of PLAN_SHAPES; further ones wait. 0: unlimited. FIT_MEMORY sets it to the number "
        "whose KV caches fit the devices' memory.",
        minimum=0,
    ),
    Property(
        "MAX_BYTES_IN_FLIGHT",
        int,
        _LIMITS.nbytes,
        mutable=True,
        doc="Maximum bytes of the requests in flight; the next ones wait for admission.",
        minimum=1,
    ),
    Property(
        "MAX_REQUESTS_WAITING",
        int,
        _LIMITS.waiting,
        mutable=True,
        doc="Maximum number of requests that wait for admission; further ones get OverloadedError.",
        minimum=0,
    ),
    Property(
        "REQUEST_TIMEOUT_S",
        float,
        _LIMITS.timeout_s,
        mutable=True,
        doc="Timeout in seconds of requests without a timeout of their own.",
        minimum=0,
    ),
    Property(
        "AUTO_BATCH_SIZE",
        int,
        0,
        mutable=True,
        doc="Maximum batch size on axis 0 for dynamic batching of waiting requests; 0 and 1: none.",
        minimum=0,
    ),
    Property(
        "AUTO_BATCH_TIMEOUT",
        int,
        1000,
        mutable=True,
        doc="Maximum milliseconds that a request waits for others to form a batch while the "
        "devices are busy; with idle devices it does not wait.",
        minimum=0,
    ),
    Property(
        "ALLOW_AUTO_BATCHING",
        bool,
        True,
        mutable=True,
        doc="Whether dynamic batching is allowed; otherwise AUTO_BATCH_SIZE is ignored.",
    ),
    Property(
        "PERF_COUNT", bool, False, mutable=True, doc="Whether requests time each executed node."
    ),
    Property(
        "STAGE_TIMEOUT_S",
        float,
        0.0,
        mutable=True,
        doc="Maximum seconds that a stage runs. If it takes longer, its device's process is "
        "restarted, and the request is replayed. On Ray only; 0: unlimited.",
        minimum=0,
    ),
    Property(
        "DEVICE_TIMEOUT_S",
        float,
        2.0,
        mutable=True,
        doc="Seconds without a heartbeat after which a device on Ray is lost and its requests are "
        "replayed. An option of the Core: set it before the first use of a device.",
        minimum=0.5,
    ),
    Property(
        "ADMISSION_TIMEOUT_S",
        float,
        _LIMITS.admission_timeout_s,
        mutable=True,
        doc="Maximum seconds that a request waits for admission before it fails.",
        minimum=0,
    ),
    Property(
        "MAX_ATTEMPTS",
        int,
        _LIMITS.attempts,
        mutable=True,
        doc="Maximum number of attempts of a request that may have crashed its device (a poison "
        "request); other requests on that device are replayed without limit. 1: no replay.",
        minimum=1,
    ),
    Property(
        "PRESERVE_ORDER",
        bool,
        _LIMITS.in_order,
        mutable=True,
        doc="Whether results are delivered in the order of the requests, instead of immediately.",
    ),
    Property(
        "VERIFY",
        str,
        "YES",
        mutable=True,
        doc="Whether the results of devices other than CPU are compared with CPU's on generated "
        "inputs before the first request. YES: nodes with wrong results run on other devices; "
        "STRICT: they raise VerificationError.",
        choices=("YES", "NO", "STRICT"),
        shapes_result=True,
    ),
    Property(
        "VERIFY_SECONDS",
        float,
        1.0,
        mutable=True,
        doc="Maximum estimated seconds that CPU runs for VERIFY; larger models are not verified.",
        minimum=0,
        shapes_result=True,
    ),
    Property(
        "VERIFY_SAMPLE",
        float,
        0.0,
        mutable=True,
        doc="Share of the requests that CPU repeats in idle time, to compare the results; 0 turns "
        "it off. Differences are logged and counted as metrics, with the nodes at fault.",
        minimum=0,
        maximum=1,
    ),
    Property(
        "VERIFY_SAMPLE_ACTION",
        str,
        "REPORT",
        mutable=True,
        doc="Reaction to a wrong result of a sampled request. REPORT: log and count it. EXCLUDE: "
        "also run the model without the device at fault, if the other devices can.",
        choices=("REPORT", "EXCLUDE"),
    ),
    Property(
        "CACHE_DIR",
        str,
        "",
        mutable=True,
        doc="Folder of the cache of compiled models; empty: no cache.",
    ),
    Property(
        "ENABLE_MMAP",
        bool,
        True,
        mutable=True,
        doc="Whether weights of imported and cached models are memory-mapped instead of read.",
    ),
    Property(
        "CACHE_SIZE_LIMIT_BYTES",
        int,
        0,
        mutable=True,
        doc="Maximum bytes of all cache entries, evicted least recently used first; 0: unlimited.",
        minimum=0,
    ),
    Property(
        "CACHE_LOCK_TIMEOUT_S",
        float,
        600.0,
        mutable=True,
        doc="Maximum seconds to wait for another process that compiles the same model.",
        minimum=0,
    ),
    Property(
        "CACHE_ENCRYPTION_CALLBACKS",
        tuple,
        (),
        mutable=True,
        doc="(encrypt, decrypt): functions from bytes to bytes, for the cache's entries.",
        check=_check_callbacks,
    ),
    Property("NETWORK_NAME", str, "", mutable=False, doc="The model's name."),
    Property("SUPPORTED_PROPERTIES", tuple, (), mutable=False, doc="Names of all properties."),
    Property("FULL_DEVICE_NAME", str, "HETERO", mutable=False, doc="Display name of the device."),
    Property(
        "OPTIMIZATION_CAPABILITIES",
        tuple,
        ("EXPORT_IMPORT",),
        mutable=False,
        doc="Capabilities of the device.",
    ),
    Property("EXECUTION_DEVICES", tuple, (), mutable=False, doc="Devices that run the model."),
    Property(
        "LOADED_FROM_CACHE",
        bool,
        False,
        mutable=False,
        doc="Whether the model was loaded from the cache.",
    ),
    COMMON_PROPERTIES["RUNTIME_REQUIREMENTS"],
    COMMON_PROPERTIES["COMPATIBILITY_CHECK"],
    Property(
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
        int,
        1,
        mutable=False,
        doc="Number of requests in flight that keeps every stage busy.",
    ),
    Property("HETERO_NUMBER_OF_SUBMODELS", int, 0, mutable=False, doc="Number of subgraphs."),
)


#: Properties of the same meaning for HETERO and for devices. Any other common name is HETERO's
#: property only: planning and caching of the whole model do not concern a device with a part of it.
SHARED_WITH_DEVICES: Final = frozenset({"PERF_COUNT", "ENABLE_MMAP", "LOG_LEVEL"})
#: HETERO's properties that also apply to a device that runs the whole model.
_FOR_SINGLE_DEVICE: Final = frozenset({"PERFORMANCE_HINT", "PERFORMANCE_HINT_NUM_REQUESTS"})
#: HETERO's properties that `set_property` of a device sets for models on that device alone.
SETTABLE_ON_DEVICES: Final = _FOR_SINGLE_DEVICE | {"LOG_LEVEL", "MODEL_PRIORITY"}

#: Suffix of cost files in CACHE_DIR.
COSTS_SUFFIX: Final = ".costs.json"
#: Options that depend on the machine or the moment; blobs do not contain them.
NOT_EXPORTED: Final = (
    "COST_FILE",
    "CACHE_DIR",
    "CACHE_SIZE_LIMIT_BYTES",
    "CACHE_LOCK_TIMEOUT_S",
    "CACHE_ENCRYPTION_CALLBACKS",
    "LOG_LEVEL",
    "DEVICE_PROPERTIES",
    "MULTI_DEVICE_PRIORITIES",
    "REPLICAS",
)


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """Typed options of HETERO and of each device."""

    #: HETERO's options, including defaults.
    hetero_config: dict[str, Any]
    #: Device name -> options, without defaults.
    device_configs: dict[str, dict[str, Any]]

    def device_configs_without_cache(self) -> dict[str, dict[str, Any]]:
        """Return the devices' options without CACHE_DIR: HETERO caches the parts of a model."""
        return {
            device: {name: value for name, value in options.items() if name != "CACHE_DIR"}
            for device, options in self.device_configs.items()
        }


def public_value(name: str, value: Any) -> Any:
    """Convert a property's value for users: tuples to lists, except ranges, as in OpenVINO."""
    return list(value) if isinstance(value, tuple) and not name.startswith("RANGE_") else value


def cache_folder(split: SplitConfig, caller_config: Config) -> str:
    """Return the folder of the cache: HETERO's, or the first device's if the caller named none."""
    devices = () if "CACHE_DIR" in caller_config else split.device_configs.values()
    folders = (split.hetero_config["CACHE_DIR"], *(options.get("CACHE_DIR") for options in devices))
    return next((folder for folder in folders if folder), "")


def settable_table(device_table: PropertyTable) -> PropertyTable:
    """Return a device's properties with those of HETERO that `set_property` sets for it."""
    missing = SETTABLE_ON_DEVICES - device_table.keys()
    return device_table.extended(*(HETERO_PROPERTIES[n] for n in sorted(missing)))


def split_shared_options(config: Config, tables: Mapping[str, PropertyTable]) -> SplitConfig:
    """Split options among HETERO and all devices; each gets the properties that it has.

    HETERO's planning properties are not passed to devices, except the hint to a single device with
    the whole model. `DEVICE_PROPERTIES` sets a device's property of the same name.

    Raises UnknownPropertyError: neither HETERO nor a device has the property.
    """
    all_properties = HETERO_PROPERTIES.extended(
        *(p for table in tables.values() for p in table.values())
    )
    device_options = (all_properties.keys() - HETERO_PROPERTIES.keys()) | SHARED_WITH_DEVICES
    if len(tables) == 1:
        device_options |= _FOR_SINGLE_DEVICE
    if config.get("LOG_LEVEL") == "":  # it leaves the levels of devices unchanged
        device_options -= {"LOG_LEVEL"}
    for name in config:
        if name not in all_properties:
            raise unknown_property(name, " or ".join((HETERO, *tables)), all_properties.mutable)
    return SplitConfig(
        Configuration(HETERO_PROPERTIES, HETERO).parse(
            {n: v for n, v in config.items() if n in HETERO_PROPERTIES}
        ),
        {
            name: Configuration(table, name).parse(
                {n: v for n, v in config.items() if n in table and n in device_options}
            )
            for name, table in tables.items()
        },
    )


def split_options(config: Config, tables: Mapping[str, PropertyTable]) -> SplitConfig:
    """Split the options of `compile_model`, including those of `DEVICE_PROPERTIES`."""
    split = split_shared_options(config, tables)
    for device, options in split.hetero_config.get("DEVICE_PROPERTIES", {}).items():
        name = match_name(device, tables)
        if name is None:
            raise UnknownPropertyError(
                "DEVICE_PROPERTIES: expected one of the model's devices "
                f"{', '.join(tables)}; got {device!r}.",
                property="DEVICE_PROPERTIES",
            )
        split.device_configs[name].update(Configuration(tables[name], name).parse(options))
    return split
