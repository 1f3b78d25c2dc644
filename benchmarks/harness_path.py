"""What a ranking task of ours costs on the harness's path, against a bare one, in one run.

    python benchmarks/harness_path.py [ROWS ...]        (default: 1070 29391)

Three variants, each in a process of its own, alternating, on the same synthetic rows of PHP's length: ``bare`` is the
least that a plain YAML task with functions can do (prompts from shared lists, MRR in ``process_results``); ``prompts``
is our task with the same free model, as any language model runs it; ``pairs`` is our task through the pair-scorer
adapter with a free scorer. A free model gives random scores at once. Time is from building the task to the results,
the harness's imports and environment information left out; memory is the process's peak.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

VARIANTS = ("bare", "prompts", "pairs")
N_CANDIDATES = 100


def write_rows(path: Path, n_rows: int) -> None:
    """Synthetic rows as long as PHP's: codes of 418 characters in the median, comments of some 75."""
    rng = random.Random(0)
    words = [f"{a}{b}" for a in ("get", "set", "find", "user", "array", "$this->") for b in ("Name", "(", ")", "_id;")]
    with path.open("w") as file:
        for row in range(n_rows):
            length = min(20_000, int(rng.lognormvariate(6.03, 0.9)))
            code = f"function f{row}() " + " ".join(rng.choices(words, k=max(1, length // 8)))
            comment = f"Comment {row} " + " ".join(rng.choices(words, k=9))
            file.write(json.dumps({"input": f"{comment} [CODESPLIT] {code}", "target": 1}) + "\n")


def bare_task(n_rows: int) -> dict[str, Any]:
    """A ranking task as one would write it without this package."""
    lines = (Path(os.environ["GECS_DATA_DIR"]) / "test_php.jsonl").read_text().splitlines()
    pairs = [json.loads(line)["input"].split(" [CODESPLIT] ") for line in lines]
    queries, codes = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    instruction = "Given a code comment and a PHP programming language code snippet, determine if " + "x" * 280
    rng = random.Random(42)

    class Rows(list[dict[str, Any]]):
        @property
        def features(self) -> dict[str, None]:
            return {"query": None, "candidates": None}

    documents = Rows(
        {"query": row, "candidates": [row, *rng.sample(range(n_rows), N_CANDIDATES - 1)]} for row in range(n_rows)
    )

    def choices(doc: dict[str, Any]) -> list[str]:
        query = queries[doc["query"]]
        return [f"{instruction}{query} [CODESPLIT] {codes[code]}" for code in doc["candidates"]]

    def results(doc: dict[str, Any], answers: Sequence[tuple[float, bool]]) -> dict[str, float]:
        gold = answers[0][0]
        return {"mrr": 1 / sum(score >= gold for score, _ in answers)}

    return {
        "task": "bare_rank",
        "custom_dataset": lambda **_: {"test": documents},
        "test_split": "test",
        "output_type": "multiple_choice",
        "num_fewshot": 0,
        "fewshot_config": {"samples": []},
        "doc_to_text": 0,
        "doc_to_choice": choices,
        "doc_to_target": "True",
        "process_results": results,
        "metric_list": [{"metric": "mrr", "aggregation": "mean", "higher_is_better": True}],
    }


def measure(variant: str, n_rows: int) -> dict[str, float]:
    """Run one variant in this process."""
    import lm_eval.evaluator
    import numpy as np
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    from gecs_tasks import plugin
    from gecs_tasks.harness import PairScorerLM
    from gecs_tasks.scorers.base import PairBatch, RankGroup, ScoreArray

    class FreeModel(LM):  # type: ignore[misc]
        def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
            rng = random.Random(0)
            return [(rng.random(), False) for _ in requests]

        loglikelihood_rolling = generate_until = loglikelihood

    class FreeScorer:
        threshold = None
        group: RankGroup | None = None

        def score(self, batch: PairBatch) -> ScoreArray:
            return np.random.default_rng(0).random(len(batch))

        def identity(self) -> dict[str, Any]:
            return {}

        def info(self) -> dict[str, Any]:
            return {"scorer": "free"}

    model = PairScorerLM(FreeScorer()) if variant == "pairs" else FreeModel()
    manager = TaskManager(include_path=str(plugin.tasks_path()), include_defaults=False)
    lm_eval.evaluator.add_env_info = lambda results: None
    started = time.perf_counter()
    task: Any = bare_task(n_rows) if variant == "bare" else "gecs_php_rank"
    lm_eval.evaluator.simple_evaluate(model, tasks=[task], task_manager=manager, log_samples=False)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}


def main(arguments: Sequence[str]) -> None:
    """Measure every variant twice and print the better run of each, with its ratio to the bare task."""
    if arguments[:1] == ["--variant"]:
        print(json.dumps(measure(arguments[1], int(arguments[2]))))
        return
    print(f"{'rows':>7}  {'variant':<8}{'seconds':>9}{'us/cand.':>10}{'ratio':>7}{'GB':>8}{'ratio':>7}")
    for n_rows in [int(argument) for argument in arguments] or [1070, 29391]:
        with tempfile.TemporaryDirectory() as folder:
            write_rows(Path(folder) / "test_php.jsonl", n_rows)
            best: dict[str, dict[str, float]] = {}
            for _ in range(2):
                for variant in VARIANTS:
                    command = [sys.executable, __file__, "--variant", variant, str(n_rows)]
                    environment = {**os.environ, "GECS_DATA_DIR": folder}
                    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                    figures = json.loads(done.stdout.splitlines()[-1])
                    kept = best.setdefault(variant, figures)
                    best[variant] = {name: min(kept[name], figures[name]) for name in figures}
        for variant, figures in best.items():
            ratios = {name: figures[name] / best["bare"][name] for name in figures}
            per_candidate = figures["seconds"] / n_rows / N_CANDIDATES * 1e6
            print(
                f"{n_rows:>7}  {variant:<8}{figures['seconds']:>9.1f}{per_candidate:>10.1f}{ratios['seconds']:>7.2f}"
                f"{figures['gigabytes']:>8.2f}{ratios['gigabytes']:>7.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main(sys.argv[1:])
