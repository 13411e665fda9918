"""The reference trainer with steps of a second in a job's first attempt, as fast as ever later.

So a training of 90 steps cannot end before a limit of one minute, and does not take long after it.
"""

from __future__ import annotations

import os
import sys
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

from hotlap.trainer.__main__ import main

if __name__ == "__main__":
    if "SLURM_RESTART_COUNT" not in os.environ and "NEVER_SLOW" not in os.environ:
        register_optimizer_step_post_hook(lambda *_: time.sleep(1.0))
    sys.exit(main(sys.argv[1:]))
