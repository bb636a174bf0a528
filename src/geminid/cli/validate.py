"""``geminid validate``: is this file right, and what does it say?"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from geminid.cli.output import WideOption, console, print_json, print_table
from geminid.fields import NOT_SHOWN, InvalidInput, Problem
from geminid.units import humanize_duration, humanize_size

if TYPE_CHECKING:
    from geminid.cluster import Cluster
    from geminid.job import JobSpec
    from geminid.policies.gavel.entities import Entities


class Kind(StrEnum):
    """What a file may describe."""

    JOB = "job"
    CLUSTER = "cluster"
    ENTITIES = "entities"


#: Fields that only one kind of file has, and cannot do without.
_TELLING = {Kind.JOB: {"name", "command"}, Kind.CLUSTER: {"nodes"}, Kind.ENTITIES: {"entities"}}


def validate(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="A job, cluster or entities file, YAML or JSON.")],
    kind: Annotated[
        Kind | None, typer.Option(help="What the file describes; seen from its fields when left out.")
    ] = None,
    wide: WideOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print the value as it was understood, for programs.")] = False,
) -> None:
    """Check a job, cluster or entities file: every mistake in a sentence, or what the file says."""
    from geminid.cluster import Cluster
    from geminid.job import JobSpec
    from geminid.policies.gavel.entities import Entities
    from geminid.sim.files import read_data

    data = read_data(file)
    which = kind or _kind_of(data)
    if which is Kind.JOB:
        spec = JobSpec.from_dict(data).redacted()
        print_json(spec.to_dict()) if json else _print_job(spec)
    elif which is Kind.ENTITIES:
        entities = Entities.from_dict(data)
        print_json(entities.to_dict()) if json else _print_entities(entities)
    else:
        cluster = Cluster.from_dict(data)
        print_json(cluster.to_dict()) if json else _print_cluster(cluster)


def _kind_of(data: object) -> Kind:
    fields = set(data) if isinstance(data, Mapping) else set()
    kinds = [kind for kind, telling in _TELLING.items() if fields & telling]
    if len(kinds) == 1:
        return kinds[0]
    which = "could be several of" if kinds else "is none of"
    expected = f"{which} a job (with name and command), a cluster (with nodes) and entities (with entities)"
    raise InvalidInput([Problem("the file", NOT_SHOWN, f"{expected}; say which it should be with --kind")])


def _print_job(spec: JobSpec) -> None:
    console.print(f"[green]valid[/] job {spec.name}")
    slots = f"{spec.min_slots} or more" if spec.max_slots is None else f"{spec.min_slots} to {spec.max_slots}"
    order = " in this order" if spec.gpu_types.ordered else ""
    batch = "as the script says" if spec.initial_batch_size is None else f"{spec.initial_batch_size:,} samples"
    facts = {
        "command": shlex.join(spec.command),
        "environment": ", ".join(name for name, _ in spec.env),
        "slots": f"{spec.min_slots}" if spec.has_fixed_size else slots,
        "GPU types": ", ".join(spec.gpu_types.names) + order if spec.gpu_types.names else "any",
        "batch size": batch if spec.has_fixed_batch else f"{batch}, at most {spec.max_batch_size:,}",
        "work": f"{spec.dataset_samples:,} samples × {spec.epochs:g} epochs" if spec.epochs else "as the script says",
        "plans": ", ".join(plan.name for plan in spec.execution_plans),
        "may change": _MAY_CHANGE[spec.adaptivity],
        "deadline": humanize_duration(spec.deadline_s) if spec.deadline_s else "",
    }
    for name, fact in facts.items():
        if fact:
            console.print(f"{name + ':':<13}{escape(fact)}", soft_wrap=True)


_MAY_CHANGE = {
    "adaptive": "slots and batch size",
    "fixed_batch": "slots",
    "rigid": "neither slots nor batch size",
}


def _print_entities(entities: Entities) -> None:
    console.print(f"[green]valid[/] entities, which share the cluster by {entities.rule or 'fairness'}")
    print_table(
        "Entities",
        ["entity", "weight", "part of the whole", "its members share by", "owners", "queues"],
        [
            [
                "/".join(entity.path),
                f"{entity.weight:g}",
                "first come" if (part := entities.part_of(entity.path)) is None else f"{part:.1%}",
                entity.rule or "fairness",
                ", ".join(entity.owners),
                ", ".join(entity.queues),
            ]
            for entity in entities.described
        ],
    )


def _print_cluster(cluster: Cluster) -> None:
    from geminid.network import WHERE

    sizes = [(cluster.nodes, "node"), (cluster.racks, "rack"), (cluster.zones, "zone")]
    parts = ", ".join(f"{len(parts):,} {part}{'s' if len(parts) > 1 else ''}" for parts, part in sizes)
    console.print(f"[green]valid[/] cluster of {cluster.total_slots:,} slots: {parts}")
    print_table(
        "GPU types",
        ["type", "nodes", "slots", "memory", "relative cost"],
        [
            [
                gpu_type.name,
                f"{cluster.nodes_per_type[gpu_type.name]:,}",
                f"{cluster.slots_per_type[gpu_type.name]:,}",
                humanize_size(gpu_type.memory_bytes),
                f"{gpu_type.relative_cost:g}",
            ]
            for gpu_type in cluster.gpu_types
        ],
    )
    links = cluster.links
    for tier in links.tiers if not links.as_profiled else ():
        times = [f"{name} {links.slowdown(tier, i):.3g}" for name, i in cluster.type_index.items()]
        console.print(
            f"Gradients {WHERE[tier]} take this many times as long as over the GPU type's own link within a rack:"
            f" {', '.join(times)}."
        )
    narrow = sorted({float(capacity) for capacity in links.capacity if capacity < math.inf})
    if narrow:
        span = " to ".join(dict.fromkeys(f"{capacity / 1e9:.3g} GB/s" for capacity in (narrow[0], narrow[-1])))
        console.print(f"Uplinks carry {span} each; jobs that use one at the same time share it.")
