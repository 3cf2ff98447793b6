"""Memory of prompt chunks: the longest chunk that fits the devices beside all KV caches."""

from __future__ import annotations

from hetero.apps.generate.decoder_ports import Decoder, step_shapes
from hetero.apps.generate.prefill_chunks import MAX_CHUNK, MIN_CHUNK
from hetero.compile.compiled_model import CompiledModel
from hetero.planning.cost.estimation import with_input_shapes
from hetero.planning.memory.device_memory import MemoryModel
from hetero.planning.memory.predict_memory import predict_memory


def longest_chunk(compiled: CompiledModel, decoder: Decoder, past: int | None) -> int | None:
    """Return the maximum tokens of a chunk; None if the model need not fit the devices' memory.

    `past`: length of the KV caches for which the model was planned.
    """
    request, report = compiled.request, compiled.plan_report
    options = request.hetero_config
    if not options["FIT_MEMORY"] or report is None:
        return None
    budgets = {p.device: p.budget_nbytes for p in report.memory if p.budget_nbytes is not None}
    traits = {
        device: request.descriptor(device).memory_traits.with_options(request.configs[device])
        for device in budgets
    }
    memory = MemoryModel(traits, budgets, sequences=options["MAX_SEQUENCES"] or 1)
    model, subgraphs = compiled.partition.source, compiled.partition.subgraphs
    size = MAX_CHUNK
    while size > MIN_CHUNK:
        shaped = with_input_shapes(model, step_shapes(model, decoder, past, size))
        if all(p.fits for p in predict_memory(shaped, subgraphs, memory).values()):
            break
        size //= 2
    return size
