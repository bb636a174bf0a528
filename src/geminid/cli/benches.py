"""All of ``geminid bench``, put together."""

from __future__ import annotations

from geminid.cli import bench, bench_service, bench_training

app = bench.app
for command in (
    *(bench_training.rescale, bench_training.overhead, bench_training.data, bench_training.saving),
    *(bench_service.service, bench_service.live, bench_service.ray, bench_service.scale),
):
    app.command()(command)
