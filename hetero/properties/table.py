"""Configuration of a compiled model: HETERO's own properties, and each device's share of the rest.

An option given to `compile_model` reaches every device that knows it; `DEVICE_PROPERTIES` reaches
one device; an unknown option is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from hetero.devices.errors import UnknownPropertyError
from hetero.devices.plugin.configuration import Configuration
from hetero.devices.plugin.properties import Config, Property, PropertyTable, unknown_property
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.names import HETERO, match_name


def _check_callbacks(callbacks: tuple[Any, ...]) -> str | None:
    if callbacks and (len(callbacks) != 2 or not all(callable(c) for c in callbacks)):
        return "it is two functions, (encrypt, decrypt)"
    return None


def _lists_of(words: str) -> Callable[[Mapping[str, Any]], str | None]:
    def check(lists: Mapping[str, Any]) -> str | None:
        for name, one in lists.items():
            if not isinstance(one, list | tuple) or not all(isinstance(w, str) for w in one):
                return f"what {name!r} has is not a list of {words}"
        return None

    return check


def _check_shapes(shapes: Mapping[str, Any]) -> str | None:
    for name, shape in shapes.items():
        sizes = shape if isinstance(shape, list | tuple) else ("",)
        if not all(type(size) is int and size >= 0 for size in sizes):
            return f"the shape of {name!r} is not a list of sizes"
    return None


_LIMITS: Final = Limits()

HETERO_PROPERTIES: Final = PropertyTable(
    Property(
        "MULTI_DEVICE_PRIORITIES",
        tuple,
        (),
        True,
        "Devices in order of priority; the device string says the same.",
    ),
    Property(
        "MODEL_DISTRIBUTION_POLICY",
        str,
        "",
        True,
        "How nodes get their devices: by PRIORITY of the list, in order along a PIPELINE_PARALLEL "
        "chain, or AUTO, by measured costs; empty: AUTO with a PERFORMANCE_HINT, else PRIORITY.",
        choices=("", "PRIORITY", "PIPELINE_PARALLEL", "AUTO"),
        shapes_result=True,
    ),
    Property(
        "PERFORMANCE_HINT",
        str,
        "",
        True,
        "What plans by cost make small: time between answers (THROUGHPUT, also if empty), or time "
        "of one (LATENCY).",
        choices=("", "LATENCY", "THROUGHPUT"),
        shapes_result=True,
    ),
    Property(
        "PERFORMANCE_HINT_NUM_REQUESTS",
        int,
        0,
        True,
        "The most requests that the application keeps in flight; 0: as many as are optimal.",
        minimum=0,
    ),
    Property(
        "COST_FILE",
        str,
        "",
        True,
        "Costs that `hetero profile` has measured; empty: measured briefly when a plan needs them.",
    ),
    Property(
        "PROFILE_SECONDS",
        float,
        8.0,
        True,
        "The most seconds to measure costs for, if no cost file is given.",
        minimum=0.1,
    ),
    Property(
        "PLAN_SECONDS",
        float,
        5.0,
        True,
        "The most seconds that the search of a plan by cost takes. Its effort follows from them; "
        "where the clock ends it early, on a busy machine, the plan says so.",
        minimum=0.1,
        shapes_result=True,
    ),
    Property(
        "PLAN_SHAPES",
        dict,
        {},
        True,
        "Shapes of inputs with open dimensions that plans by cost are made for: {input: [sizes]}; "
        "dimensions that nothing says are 1.",
        check=_check_shapes,
        shapes_result=True,
    ),
    Property("PLAN_SEED", int, 0, True, "Seed of that search.", minimum=0, shapes_result=True),
    Property(
        "MAX_SUBGRAPHS",
        int,
        0,
        True,
        "The most subgraphs that a plan by cost may have; 0: any.",
        minimum=0,
        shapes_result=True,
    ),
    Property(
        "MAX_VARIANTS",
        int,
        1,
        True,
        "How many plans, whole replicas included, may share the requests of a model planned by "
        "cost for THROUGHPUT.",
        minimum=1,
        shapes_result=True,
    ),
    Property(
        "NUM_REPLICAS",
        int,
        1,
        True,
        "How many copies of the model share the requests, each on devices of its own: copy i "
        "has the devices i, i+N, i+2N, ... of the list, and pins on others of the same "
        "plugin.",
        minimum=1,
        shapes_result=True,
    ),
    Property(
        "STAGE_REPLICAS",
        dict,
        {},
        True,
        "Devices that have all subgraphs of another as well, and take turns with it: "
        '{"ORT.0": ["ORT.1", "ORT.2"]}. They get none of their own.',
        check=_lists_of("devices"),
        shapes_result=True,
    ),
    Property(
        "COLOCATION",
        dict,
        {},
        True,
        "Groups of nodes that a plan by cost keeps on one device: {group: [name, glob, op:Type]}.",
        check=_lists_of("patterns"),
        shapes_result=True,
    ),
    Property(
        "DEVICE_MEMORY_NBYTES",
        dict,
        {},
        True,
        "Bytes for weights by device name, if a plan by cost may use less than all of it.",
        minimum=0,
        shapes_result=True,
    ),
    Property(
        "DEVICE_PROPERTIES",
        dict,
        {},
        True,
        "Options of single devices: {device name: {property: value}}.",
    ),
    Property(
        "MAX_REQUESTS_IN_FLIGHT",
        int,
        0,
        True,
        "Requests in flight, joined ones counted as one, before the next waits to be admitted; "
        f"0: as many as are optimal, at least {_LIMITS.requests}.",
        minimum=0,
    ),
    Property(
        "MAX_BYTES_IN_FLIGHT",
        int,
        _LIMITS.nbytes,
        True,
        "Bytes that requests in flight may hold before the next one waits.",
        minimum=1,
    ),
    Property(
        "MAX_REQUESTS_WAITING",
        int,
        _LIMITS.waiting,
        True,
        "Callers that may wait to be admitted; one more gets OverloadedError.",
        minimum=0,
    ),
    Property(
        "REQUEST_TIMEOUT_S",
        float,
        _LIMITS.timeout_s,
        True,
        "Seconds after which a request without a deadline of its own fails.",
        minimum=0,
    ),
    Property(
        "AUTO_BATCH_SIZE",
        int,
        0,
        True,
        "Rows on axis 0 up to which requests that wait are joined into one; 0 and 1: none are.",
        minimum=0,
    ),
    Property(
        "AUTO_BATCH_TIMEOUT",
        int,
        1000,
        True,
        "Milliseconds that a request waits at most for others to be joined with, while the devices "
        "are busy; where they are not, it does not wait.",
        minimum=0,
    ),
    Property(
        "ALLOW_AUTO_BATCHING",
        bool,
        True,
        True,
        "Whether requests may be joined; without it AUTO_BATCH_SIZE is not looked at.",
    ),
    Property("PERF_COUNT", bool, False, True, "Whether requests time each executed node."),
    Property(
        "STAGE_TIMEOUT_S",
        float,
        0.0,
        True,
        "Seconds that a stage may run: one that takes longer is stuck, its device's process is "
        "ended and started anew, and the request tried again. On Ray only; 0: any.",
        minimum=0,
    ),
    Property(
        "DEVICE_TIMEOUT_S",
        float,
        2.0,
        True,
        "Seconds of silence after which a device on Ray is lost, and its requests tried again. Of "
        "a Core: set before its devices are first used.",
        minimum=0.5,
    ),
    Property(
        "ADMISSION_TIMEOUT_S",
        float,
        _LIMITS.admission_timeout_s,
        True,
        "Seconds after which a request that still waits to be admitted fails.",
        minimum=0,
    ),
    Property(
        "MAX_ATTEMPTS",
        int,
        _LIMITS.attempts,
        True,
        "How often a request is tried that may be why its device is lost; what was there beside it "
        "is replayed free. 1: nothing is replayed.",
        minimum=1,
    ),
    Property(
        "PRESERVE_ORDER",
        bool,
        _LIMITS.in_order,
        True,
        "Whether answers come in the order of the requests; else each as soon as it is there.",
    ),
    Property("CACHE_DIR", str, "", True, "Folder of compiled models; empty: no cache."),
    Property(
        "ENABLE_MMAP",
        bool,
        True,
        True,
        "Whether weights of imported and cached models are mapped rather than read.",
    ),
    Property(
        "CACHE_SIZE_LIMIT_BYTES",
        int,
        0,
        True,
        "Bytes that the cache's folder may hold, the least recently used out first; 0: any.",
        minimum=0,
    ),
    Property(
        "CACHE_LOCK_TIMEOUT_S",
        float,
        600.0,
        True,
        "Seconds to wait for another's compilation of the same model before doing it here.",
        minimum=0,
    ),
    Property(
        "CACHE_ENCRYPTION_CALLBACKS",
        tuple,
        (),
        True,
        "(encrypt, decrypt): functions from bytes to bytes for the cache's files.",
        check=_check_callbacks,
    ),
    Property("NETWORK_NAME", str, "", False, "The model's name."),
    Property("SUPPORTED_PROPERTIES", tuple, (), False, "Every property's name."),
    Property("FULL_DEVICE_NAME", str, "HETERO", False, "The device's name for people."),
    Property("OPTIMIZATION_CAPABILITIES", tuple, ("EXPORT_IMPORT",), False, "Abilities."),
    Property("EXECUTION_DEVICES", tuple, (), False, "Devices that the model runs on."),
    Property("LOADED_FROM_CACHE", bool, False, False, "Whether compilation was a cache hit."),
    Property(
        "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
        int,
        1,
        False,
        "Requests in flight that keep every stage busy.",
    ),
    Property("HETERO_NUMBER_OF_SUBMODELS", int, 0, False, "How many subgraphs there are."),
)


#: What HETERO and each device do alike. Any other name that both have means HETERO's property: how
#: the whole model is planned and cached is nothing that a device with a part of it could obey.
SHARED: Final = frozenset({"PERF_COUNT", "ENABLE_MMAP"})
#: What concerns the whole model, and with it the only device that has it.
_OF_A_WHOLE: Final = frozenset({"PERFORMANCE_HINT", "PERFORMANCE_HINT_NUM_REQUESTS"})

#: How the names of cost files end that CACHE_DIR holds.
COSTS_SUFFIX: Final = ".costs.json"
#: Options of one place and one moment, which no blob keeps.
NOT_KEPT: Final = (
    "COST_FILE",
    "CACHE_DIR",
    "CACHE_SIZE_LIMIT_BYTES",
    "CACHE_LOCK_TIMEOUT_S",
    "CACHE_ENCRYPTION_CALLBACKS",
    "DEVICE_PROPERTIES",
    "MULTI_DEVICE_PRIORITIES",
    "STAGE_REPLICAS",
)


@dataclass(frozen=True, slots=True)
class SplitConfig:
    """A configuration sorted by who reads it; typed."""

    #: HETERO's own properties, defaults filled in.
    own: dict[str, Any]
    #: Device name -> its properties, as given.
    devices: dict[str, dict[str, Any]]

    def without_caches(self) -> dict[str, dict[str, Any]]:
        """Return devices' options for parts of a model, which HETERO caches, not the device."""
        return {
            device: {name: value for name, value in options.items() if name != "CACHE_DIR"}
            for device, options in self.devices.items()
        }


def listed(name: str, value: Any) -> Any:
    """Return a property's value as users get it: lists, but for ranges, as OpenVINO has them."""
    return list(value) if isinstance(value, tuple) and not name.startswith("RANGE_") else value


def cache_folder(split: SplitConfig, given: Config) -> str:
    """Return the cache's folder: HETERO's, else, unless `given` names one, the first device's."""
    devices = () if "CACHE_DIR" in given else split.devices.values()
    folders = (split.own["CACHE_DIR"], *(options.get("CACHE_DIR") for options in devices))
    return next((folder for folder in folders if folder), "")


def parse_shared(config: Config, tables: Mapping[str, PropertyTable]) -> SplitConfig:
    """Sort options that several may read by who does; each takes what it knows.

    What HETERO plans with reaches no device, except that one which gets the whole model has its
    hint. `DEVICE_PROPERTIES` reaches a device's own property of the same name.
    """
    known = HETERO_PROPERTIES.extended(*(p for table in tables.values() for p in table.values()))
    passed = (known.keys() - HETERO_PROPERTIES.keys()) | SHARED
    if len(tables) == 1:
        passed |= _OF_A_WHOLE
    for name in config:
        if name not in known:
            raise unknown_property(name, " or ".join((HETERO, *tables)), known.mutable)
    return SplitConfig(
        Configuration(HETERO_PROPERTIES, HETERO).parse(
            {n: v for n, v in config.items() if n in HETERO_PROPERTIES}
        ),
        {
            name: Configuration(table, name).parse(
                {n: v for n, v in config.items() if n in table and n in passed}
            )
            for name, table in tables.items()
        },
    )


def parse_given(config: Config, tables: Mapping[str, PropertyTable]) -> SplitConfig:
    """Sort what `compile_model` is given: options that several may read, and single devices'."""
    split = parse_shared(config, tables)
    for device, options in split.own.get("DEVICE_PROPERTIES", {}).items():
        name = match_name(device, tables)
        if name is None:
            raise UnknownPropertyError(
                f"DEVICE_PROPERTIES names {device!r}, which is not one of the model's devices: "
                f"{', '.join(tables)}.",
                property="DEVICE_PROPERTIES",
            )
        split.devices[name].update(Configuration(tables[name], name).parse(options))
    return split
