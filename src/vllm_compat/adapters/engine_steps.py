"""``MultiprocExecutor.execute_model`` and ``Scheduler.schedule``: the steps of vLLM's engine.

speculators drives the scheduler and the executor by hand and leaves out half of what the engine
does with them: it never hands a step's result back to the scheduler, so that no request ever
finishes by itself. 0.3.0 therefore aborts every request after its first step, finished or not, and
0.4 keeps all until the end of the call, which holds no more than ``max_num_seqs``. Here a step is a
whole one, as in ``EngineCore.step``: execute, sample where vLLM wants that as a second call, give
the result to the scheduler. Then requests finish when their prompt is done, others take their
place, and calls of any number and length run through.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm_compat.adapters.adapter import Adapter, Break, Decision
from vllm_compat.adapters.premise import Premise
from vllm_compat.context import GENERATOR, Context
from vllm_compat.patching import Patch, Wrap, wrap_method

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXECUTOR = "vllm.v1.executor.multiproc_executor:MultiprocExecutor"
SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
EXECUTE, SAMPLE = f"{EXECUTOR}.execute_model", f"{EXECUTOR}.sample_tokens"
SCHEDULE, FINISH = f"{SCHEDULER}.schedule", f"{SCHEDULER}.finish_requests"
PREMISES = (
    Premise(EXECUTE, positional=1),
    Premise(SAMPLE, since="0.11.1", positional=1),  # 0.11.0 samples in execute_model
    Premise(f"{SCHEDULER}.update_from_output", positional=2),
    Premise(SCHEDULE, positional=0),
    Premise(FINISH, positional=2),
    # And what speculators calls on the two besides.
    Premise(f"{SCHEDULER}.add_request", positional=1),
    Premise(f"{EXECUTOR}.initialize_from_config", positional=1),
    Premise(f"{EXECUTOR}.shutdown", positional=0),
)


def needed(context: Context) -> Decision:
    return Decision("adapted", "every step is sampled and handed back to the scheduler")


def whole_steps(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Wraps the generator's constructor."""
    wrapped(*args, **kwargs)
    steps = Steps(instance.executor, instance.scheduler)
    wrap_method(instance.executor, "execute_model", steps.execute_model)
    instance.executor.sample_tokens = steps.sample_tokens
    wrap_method(instance.scheduler, "schedule", steps.schedule)
    wrap_method(instance.scheduler, "finish_requests", steps.finish_requests)


class Steps:
    """What the executor and the scheduler of one generator are given in place of their own."""

    def __init__(self, executor: Any, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._execute = executor.execute_model
        self._sample = getattr(executor, "sample_tokens", None)
        # Finished requests the workers have not been told of. A plan names them once; if it is
        # never executed, the workers would hold their state, and their slots, for ever.
        self._untold: set[str] = set()

    def schedule(self, wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
        plan = wrapped(*args, **kwargs)
        self._untold |= plan.finished_req_ids
        plan.finished_req_ids = set(self._untold)
        if self._untold and not plan.total_num_scheduled_tokens:
            self._run(plan)  # speculators' loop ends with an empty plan and does not execute it
        return plan

    def execute_model(self, wrapped: Any, executor: Any, args: Any, kwargs: Any) -> Any:
        plan = args[0] if args else kwargs["scheduler_output"]
        result = self._run(plan)
        if result is None and self._sample is not None:
            result = _settled(self._sample(None))
        self._scheduler.update_from_output(plan, result)
        return result

    def _run(self, plan: Any) -> Any:
        result = _settled(self._execute(plan))
        self._untold.clear()
        return result

    @staticmethod
    def sample_tokens(result: Any) -> Any:
        """``execute_model`` has sampled already; its result is what 0.4 passes in here."""
        return result

    def finish_requests(self, wrapped: Any, scheduler: Any, args: Any, kwargs: Any) -> Any:
        """Requests finish when they are done; to abort them sooner would cut their prompts."""
        return []


def _settled(reply: Any) -> Any:
    """A worker's reply, waited for where it is a future or an asynchronous output."""
    if hasattr(reply, "result") and callable(reply.result):
        reply = reply.result()
    if hasattr(reply, "get_output"):
        reply = reply.get_output()
    return reply


def patches(context: Context) -> Sequence[Patch]:
    path = "VllmHiddenStatesGenerator.__init__"
    return [Wrap(GENERATOR, path, whole_steps, "engine-steps")]


ADAPTER = Adapter(
    name="engine-steps",
    symbol=EXECUTE,
    call_site=f"{GENERATOR}:VllmHiddenStatesGenerator.generate",
    speculators=">=0.3,<0.5",
    broke=(
        Break(
            "0.11.1",
            "26866",
            "execute_model returns None: sample_tokens must follow",
            kind="return changed",
            at="self.executor.execute_model",
            shows=SAMPLE,
        ),
        Break("0.17.0", "", "finish_requests returns what it finished"),
        Break("0.24.0", "44558", "schedule takes throttle_prefills"),
        Break(
            "speculators 0.3.0",
            "",
            "aborts requests in the middle of their prompt",
            kind="fault",
            symbol=FINISH,
            at="self.scheduler.finish_requests",
            line="0.3",
        ),
        Break(
            "speculators 0.3.0",
            "",
            "the states of a request that was preempted come back short",
            kind="fault",
            symbol=SCHEDULE,
            at="self.scheduler.schedule",
        ),
        Break(
            "speculators 0.4.0",
            "",
            "of more prompts than max_num_seqs (32), the rest is not found",
            kind="fault",
            symbol=FINISH,
            at="self.scheduler.finish_requests",
            line="0.4",
        ),
    ),
    removal="speculators drives vLLM through its public API (0.5.0 does)",
    needed=needed,
    patches=patches,
    premises=PREMISES,
)
