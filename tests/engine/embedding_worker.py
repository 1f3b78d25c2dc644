"""Makes an embedding model of ours, encodes texts with it and runs tasks on it: one start of an engine for all.

``python embedding_worker.py request.json answer.json``; it imports no vLLM itself, the backend does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def work(request: dict[str, Any]) -> dict[str, Any]:
    """Each role's vectors and which texts are cut, the encoder's identity, and the results of each task."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    from gecs_tasks import plugin
    from gecs_tasks.models import EmbeddingModel

    plugin.activate()
    model = EmbeddingModel(**request["model_args"])
    encoder: Any = model.scorer.encoder  # type: ignore[attr-defined]
    vectors = {role: encoder.encode(texts, role).tolist() for role, texts in request["texts"].items()}
    cut = {role: encoder.cut(texts, role) for role, texts in request["texts"].items()}
    manager = TaskManager(include_path=str(plugin.tasks_path()), include_defaults=False, metadata={})
    mrr = {}
    for task, limit in request["tasks"].items():
        settings = {"task_manager": manager, "limit": limit, "log_samples": False, "bootstrap_iters": 0}
        mrr[task] = simple_evaluate(model=model, tasks=[task], **settings)["results"][task]["mrr,none"]
    model.scorer.close()  # type: ignore[attr-defined]
    return {"vectors": vectors, "cut": cut, "identity": encoder.identity(), "mrr": mrr}


if __name__ == "__main__":
    asked, answer = map(Path, sys.argv[1:])
    answer.write_text(json.dumps(work(json.loads(asked.read_text(encoding="utf-8")))), encoding="utf-8")
