"""dspy: its language model, a signature, and tools."""

import dspy
import task
from dspy.utils.exceptions import ContextWindowExceededError

lm = dspy.LM(f"openai/{task.MODEL}", cache=False, temperature=0)
(answer,) = lm(task.GREETING)
task.check_answer(answer if isinstance(answer, str) else answer["text"])
dspy.configure(lm=lm)
held = lm(task.EXTRACT, response_format=task.Person)[0]
task.check_person(task.Person.model_validate_json(held if isinstance(held, str) else held["text"]))
task.check_refused(lambda: lm(task.TOO_LONG), ContextWindowExceededError, task.OPENAI_SAYS)
