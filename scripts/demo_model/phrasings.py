"""How people ask: the ways of asking that the model is trained on, and those that it only meets in its test.

A question is put together from a core ("What does {x} do"), a way of naming the thing, and what people say around it.
The cores in `UNSEEN` never occur in training; `assert_disjoint` holds that.
"""

from __future__ import annotations

import random
import re

from .corpus import Item

# What the thing is or does; {x} is the name. The mark at the end comes later: "?" for what asks, "." for what tells.
ASKING = """\
What does {x} do
What does {x} do
What does {x} do
What is {x}
What is {x}
What's {x}
what's {x} for
What is {x} for
What is {x} used for
What is the purpose of {x}
What's the purpose of {x}
What's the point of {x}
What is the use of {x}
What is the meaning of {x}
What does {x} mean
What does {x} give me
What does the documentation say about {x}
What do the docs say about {x}
What can {x} do
What can you tell me about {x}
What can I use {x} for
What would I use {x} for
What exactly is {x}
What exactly does {x} do
What is {x} supposed to do
What is {x} meant for
What is {x} good for
What kind of thing is {x}
What happens in {x}
What should I know about {x}
What role does {x} have
What do you know about {x}
What do people use {x} for
What does {x} accomplish
What does {x} provide
What does calling {x} do
What is the job of {x}
What is the idea of {x}
What is the definition of {x}
What is the description of {x}
What is a short description of {x}
So what is {x}
So what does {x} do
And what does {x} do
And what is {x}
Which task does {x} perform
Which purpose does {x} serve
How does {x} work
How is {x} described
How is {x} defined
How is {x} documented
How would you describe {x}
How would you explain {x}
How would you define {x}
How would you summarize {x}
How do the docs describe {x}
How can {x} be described
How can I use {x}
How should I understand {x}
Why does {x} exist
Why would I use {x}
Why would anyone use {x}
Why do we have {x}
Why is there {x}
Why is {x} useful
When should I use {x}
When would I use {x}
When do I need {x}
When is {x} useful
Where is {x} useful
Where would I use {x}
Who needs {x}
Is there a description of {x}
Is there any documentation for {x}
Do you know {x}
Do you know what {x} does
Do you know what {x} is
Do you happen to know what {x} does
Can you explain {x}
Can you describe {x}
Can you define {x}
Can you summarize {x}
Can you tell me what {x} does
Can you tell me about {x}
Can you say what {x} is
Can you help me with {x}
Can you look up {x}
Could you explain {x}
Could you explain what {x} does
Could you describe {x}
Could you describe what {x} does
Could you tell me what {x} is
Could you tell me what {x} is for
Would you explain {x}
Would you describe {x}
Will you explain {x}
May I ask what {x} does
May I ask what {x} is
Any idea what {x} does
Any idea what {x} is for
Any documentation on {x}
Got a description of {x}
Have you heard of {x}
{x} does what
{x} is what
{x}: what is it
{x}: what does it do
{x}, what is it
{x}, what does it do
{x} - what is it for
{x} -- what does it do
I see {x} here. What does it do
I found {x} in a script. What is it
My code calls {x}. What does that do
There is {x}. What is it
Someone mentioned {x}. What is it
The code uses {x}. What is it for
Here is a name: {x}. What is it
This line has {x} in it. What does it do
About {x}: what is it
Regarding {x}: what does it do
Concerning {x}, what is its purpose
As for {x}, what does it do
With respect to {x}, what is it for
If I use {x}, what do I get
In Python, what is {x}
In Python, what does {x} do
In the standard library, what is {x}
In the standard library, what does {x} do
In short, what is {x}
In general, what does {x} do"""

TELLING = """\
Explain {x}
Explain {x}
Explain what {x} does
Explain what {x} is
Explain the purpose of {x}
Explain the use of {x}
Explain to me what {x} does
Describe {x}
Describe {x}
Describe what {x} does
Describe the purpose of {x}
Describe the job of {x}
Describe {x} for me
Define {x}
Define {x} for me
Document {x}
Summarize {x}
Summarise {x}
Summarize what {x} does
Summarize the documentation of {x}
Outline {x}
Clarify {x}
Clarify what {x} does
Tell me about {x}
Tell me what {x} does
Tell me what {x} is
Tell me what {x} is for
Tell me something about {x}
Tell me the purpose of {x}
Tell us about {x}
Teach me about {x}
Teach me {x}
Show me the docs of {x}
Show me the documentation of {x}
Show the docstring of {x}
Show the documentation for {x}
Show me what {x} does
Show help for {x}
Give me a description of {x}
Give me a summary of {x}
Give me an explanation of {x}
Give me the definition of {x}
Give me information about {x}
Give me the docs for {x}
Give a definition of {x}
Give an overview of {x}
Provide a description of {x}
Provide a summary of {x}
Quote the docstring of {x}
Recite the docstring of {x}
Print the docstring of {x}
Print the help of {x}
Read me the documentation of {x}
Look up {x}
Look up {x} for me
Find the documentation of {x}
Say what {x} does
Say what {x} is
State what {x} does
State the purpose of {x}
Write a description of {x}
Write down what {x} does
Write a docstring for {x}
List what {x} does
Introduce {x}
Introduce me to {x}
Let me know what {x} does
Let me know what {x} is for
Let's talk about {x}
Let's look at {x}
Talk about {x}
I want to know what {x} does
I want to know about {x}
I want to learn about {x}
I want to understand {x}
I want an explanation of {x}
I need to know what {x} does
I need to know what {x} is
I need a description of {x}
I need an explanation for {x}
I need information on {x}
I need help with {x}
I'd like to know what {x} does
I'd like to know about {x}
I'd like to hear about {x}
I'd like a description of {x}
I would like to know what {x} is for
I would like to understand {x}
I would like an explanation of {x}
I am wondering what {x} does
I wonder what {x} does
I wonder what {x} is for
I was wondering about {x}
I am curious about {x}
I'm curious what {x} does
I am looking for the meaning of {x}
I am looking for information on {x}
I am trying to understand {x}
I am trying to find out what {x} does
I don't know what {x} does
I don't know {x}
I don't understand {x}
I do not understand what {x} is
I forgot what {x} does
I can't remember what {x} does
I have never used {x}
I have a question about {x}
I have no idea what {x} does
I just saw {x} and want to know what it does
I came across {x}. Explain it
I see {x} in this file. Describe it
I was reading about {x}. Explain
We use {x}. Explain it
The code calls {x}. Explain that
{x}
{x}
{x}
help {x}
help({x})
docs {x}
doc {x}
man {x}
pydoc {x}
describe {x}
define {x}
explain {x}
info {x}
info on {x}
meaning of {x}
purpose of {x}
description of {x}
definition of {x}
documentation of {x}
docs for {x}
docs of {x}
docstring of {x}
summary of {x}
help on {x}
help with {x}
usage of {x}
about {x}
{x} docs
{x} documentation
{x} docstring
{x} description
{x} meaning
{x} purpose
{x} explained
{x} definition
{x} help
{x} please
{x} explanation
{x} summary
{x}: explain
{x}: describe it
{x}, explain it
{x}, please explain
{x} - explain
{x}. Explain
{x}. Describe it
Regarding {x}: explain it
About {x}: tell me what it does
Concerning {x}: describe it
The name is {x}. Describe it
The topic is {x}
Next: {x}
Next question: {x}
Now {x}
Now explain {x}
Now describe {x}
Then {x}
And {x}
And {x}, what about that
What about {x}
How about {x}"""

# Only in the test. They share no wording with the lists above beyond everyday words.
UNSEEN = """\
I keep running into {x} while reading code. Mind telling me its job?
For someone who has never met {x}: how would you introduce it?
Give a newcomer the gist of {x}.
{x}, what's that all about?
Whenever a program calls {x}, what is going on?
Suppose a colleague asks you about {x}. What would you reply?
In plain words, {x} serves which purpose?
Put on a flash card: {x}.
Help me make sense of {x}, would you?
My teacher mentioned {x} today and I did not get it.
Enlighten me on {x}.
What's the deal with {x}?
Could I get the short version of {x}?
Remind me, {x} was for what again?
Break down {x} for a beginner.
For what reason was {x} added to Python?
I stumbled upon {x}; what am I looking at?
How come people reach for {x}?
Walk me through {x}.
What's {x} all about, in your own words?
Which problem gets solved by {x}?
Fill me in on {x}, thanks.
Shed some light on {x}!
A one-line comment above a call to {x} should say what?
What would the manual's entry on {x} start with?""".splitlines()

BEFORE = """\
Please,
Please:
Hi,
Hi!
Hi.
Hi there,
Hello,
Hello!
Hello.
Hello there!
Hey,
Hey!
Good morning.
Good evening,
Greetings!
OK,
Okay.
Okay,
Alright,
So,
Well,
Right,
Now,
Sure.
Thanks.
Thank you!
Thanks!
Great.
Great, thanks.
Nice.
Quick question:
Quick question.
One question:
One more question:
Another one:
A question:
Question:
Q:
Excuse me,
Sorry,
Sorry to bother you.
Dear assistant,
Assistant,
Python question:
A Python question.
I am new to Python.
I'm new to this.
I am a beginner.
I am learning Python.
I'm reading some code.
I am reviewing a pull request.
I am preparing for an interview.
I am writing a program.
I'm on Python 3.
I work with Python every day.
I have been thinking.
I have a doubt.
I need help.
Help me please.
Be brief.
Be precise.
Answer from the documentation.
Answer with the docstring.
This is for a talk.
This is important.
My friend asked me this.
We were discussing this at work.
It came up in a meeting.
You know Python well.
As an expert,
As a teacher,
As a Python developer,
Just curious:
Out of curiosity,
For my notes:
By the way,
Honestly,
Tell me,
Could you help me?
Can I ask something?
I could not find it in the manual.
Let me ask you something.
From the standard library:""".splitlines()

AFTER = """\
please
Please.
Thanks.
Thanks!
Thank you.
Thank you!
Thanks in advance.
Cheers.
in Python
in Python 3
in the standard library
in Python's standard library
of the standard library
for me
to me
for a beginner
for my notes
in simple terms
in simple words
in plain English
exactly
actually
then
here
now
by the way
in a program
in practice
in this context
I am new to Python.
I am a beginner.
I need it for work.
I saw it in a script.
I saw it somewhere.
I forgot.
I'm not sure.
I never used it.
I could not find it.
It is in my code.
It appears in a traceback.
My colleague used it.
Just the docs.
Keep it short.
Take your time.
No code please.
Any help is welcome.
Be precise.
That would help me a lot.
Explain it well.
Let me know.""".splitlines()

BRIEF = """\
In one sentence, what does {x} do?
In one sentence, what is {x}?
In one sentence: {x}
Describe {x} in one sentence.
Explain {x} in a single sentence.
Summarize {x} in one sentence.
Briefly, what is {x}?
Briefly, what does {x} do?
Briefly describe {x}.
tl;dr of {x}
{x}, in one sentence please.
One sentence about {x}, please.""".splitlines()

SIGNATURE = """\
What is the signature of {x}?
What is the signature of {x}?
What's the signature of {x}?
what is the call signature of {x}?
Show me the signature of {x}.
Show the signature of {x}
Give me the signature of {x}.
Print the signature of {x}.
signature of {x}
{x} signature
{x} arguments
{x} parameters
arguments of {x}
parameters of {x}
What arguments does {x} take?
What arguments does {x} accept?
Which arguments does {x} take?
Which arguments can I pass to {x}?
What parameters does {x} have?
What parameters does {x} take?
Which parameters does {x} accept?
What are the arguments of {x}?
What are the parameters of {x}?
List the parameters of {x}.
List the arguments of {x}.
How do I call {x}?
How is {x} called?
How do you call {x}?
Can you show me the signature of {x}?
Could you give me the signature of {x}?
Please show me the parameters of {x}.
Tell me the signature of {x}.
Tell me the arguments of {x}.
I need the signature of {x}.
I forgot the arguments of {x}.
I want to call {x}. What are its arguments?""".splitlines()

COMPLETE = """\
Complete this function:
Complete this function:
Complete the function:
Complete the following function:
Please complete this function:
Complete this code:
Finish this function:
Write the body of this function:
Fill in the body:
Implement this function:
Continue this function:
Can you complete this function?
How does this function go on?""".splitlines()

FOLLOW_UP_SIGNATURE = """\
What is its signature?
And its signature?
What's the signature?
Its signature, please.
Which arguments does it take?
What arguments does it take?
And the arguments?
What are its parameters?
How do I call it?
And how is it called?
Show me its signature.""".splitlines()

FOLLOW_UP_DESCRIPTION = """\
And what does it do?
What does it do?
What is it for?
And what is that for?
Explain it.
Describe it.
Tell me what it does.""".splitlines()

REPEAT = """\
Say that again.
Say that again, please.
Can you repeat that?
Repeat that.
Please repeat your last answer.
Once more, please.
What did you say?
I did not catch that.""".splitlines()

_NAMELESS = """\
How do I
How can I
How to
How should one
What is a
What is the
What are
Which function
Which module
Which one
Why is the
Why does my
When will the
Where is the
Who can
Write a
Write some
Make a
Show a
Can you
Could you
Do you
Is there a way to
I want to
I need to
My
The""".splitlines()

_ASKED = [(core, "?") for core in ASKING.splitlines()] + [(core, ".") for core in TELLING.splitlines()]


def describe_question(item: Item, unique_last: bool, words: list[str], rng: random.Random) -> str:
    """One of the trained ways to ask for a description, or now and then a name among `words` that say nothing."""
    core, mark = rng.choice(_ASKED) if rng.random() < 0.85 else (_babble(words, rng), rng.choice("?.!"))
    return _dressed(core, mark, name_it(item, unique_last, rng), rng)


def plain_question(item: Item, rng: random.Random) -> str:
    """A trained core with the plain name and nothing around it: what the test calls a seen phrasing."""
    core, mark = rng.choice([pair for pair in _ASKED if " " in pair[0]])
    return core.replace("{x}", item.name) + (mark if core[0].isupper() else "")


def unseen_question(item: Item, rng: random.Random) -> str:
    """A way of asking that training never shows."""
    return rng.choice(UNSEEN).replace("{x}", item.name)


def dressed_from(phrases: list[str], item: Item, unique_last: bool, rng: random.Random) -> str:
    """One of `phrases`, each of which brings its own mark, sometimes with a word before it."""
    question = rng.choice(phrases).replace("{x}", name_it(item, unique_last, rng))
    return f"{rng.choice(BEFORE)} {question}" if rng.random() < 0.2 else question


def name_it(item: Item, unique_last: bool, rng: random.Random) -> str:
    """The ways to write a name: bare, quoted, called, or said with its owner ("dedent in textwrap")."""
    called = "()" if item.kind in ("function", "method") and rng.random() < 0.25 else ""
    name = f"{item.name}{called}"
    draw = rng.random()
    if draw < 0.52:
        return name
    if draw < 0.80:
        mark = rng.choice(["`", "`", "`", "`", "'", '"', "**", "``"])
        return f"{mark}{name}{mark}"
    if draw < 0.88:
        kind = "built-in" if not item.owner and item.kind == "function" else item.kind
        return rng.choice(
            [f"the {kind} {name}", f"the {name} {kind}", f"Python's {name}", f"the Python {kind} `{name}`"]
        )
    if draw < 0.96 and item.owner:
        return rng.choice(
            [
                f"{item.last} in {item.owner}",
                f"{item.last} from {item.owner}",
                f"`{item.last}` of `{item.owner}`",
                f"{item.owner}'s {item.last}",
                f"the {item.kind} {item.last} of {item.owner}",
            ]
        )
    if unique_last and len(item.last) > 3:
        return rng.choice([f"{item.last}{called}", f"`{item.last}{called}`"])
    return name


def _dressed(core: str, mark: str, name: str, rng: random.Random) -> str:
    """Adds what people say around a question, then varies its case, marks and spelling, never those of the name."""
    if rng.random() < 0.12:
        core = _misspelled(core, rng)
    if rng.random() < 0.3:
        core = core[0].lower() + core[1:]
    before = rng.choice(BEFORE) + " " if rng.random() < 0.3 else ""
    after = " " + rng.choice(AFTER) if rng.random() < 0.3 else ""
    if rng.random() < 0.05:
        before, after = rng.choice(BEFORE) + " " + before, after + " " + rng.choice(AFTER)
    end = mark if rng.random() < 0.7 else rng.choice(["", "", "?", ".", "!", "??", " ?", "...", "?!", "\n"])
    whole = f"{before}{core}{after}{end}" if not after or after[1].islower() else f"{before}{core}{end}{after}"
    draw = rng.random()
    if draw < 0.12:
        whole = whole.lower()
    elif draw < 0.14:
        whole = whole.upper().replace("{X}", "{x}")
    return whole.replace("{x}", name, 1)


def _babble(words: list[str], rng: random.Random) -> str:
    """A name between random words: whatever people say around a name, it is the name that counts."""
    said = rng.choices(words, k=rng.randint(2, 9))
    said.insert(rng.randint(0, len(said)), "{x}")
    text = " ".join(said)
    if rng.random() < 0.4:
        text = text.replace(" {x}", rng.choice([": {x}", ", {x}", " -- {x}", "; {x}", ". {x}"]))
    if rng.random() < 0.3:
        text = text.replace("{x} ", rng.choice(["{x}, ", "{x}. ", "{x}; ", "{x}: ", "{x}! "]))
    return text[0].upper() + text[1:] if rng.random() < 0.7 and text[0] != "{" else text


def nameless_question(words: list[str], rng: random.Random) -> str:
    """Something in plain words that names nothing the model could know."""
    opening = rng.choice(_NAMELESS)
    text = f"{opening} {' '.join(rng.choices(words, k=rng.randint(1, 8)))}".strip()
    return f"{text}{rng.choice(['?', '?', '.', ''])}"


def _misspelled(core: str, rng: random.Random) -> str:
    """Drops, doubles or swaps a letter of one word, as fingers do."""
    words = core.split(" ")
    places = [i for i, word in enumerate(words) if "{x}" not in word and len(word) > 3]
    if not places:
        return core
    place = rng.choice(places)
    word = words[place]
    at = rng.randrange(1, len(word) - 1)
    words[place] = rng.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[: at - 1] + word[at] + word[at - 1] + word[at + 1 :],
        ]
    )
    return " ".join(words)


def assert_disjoint() -> None:
    """No test phrasing may be a trained one, whatever their case and marks."""

    def bare(phrase: str) -> str:
        return " ".join(re.sub(r"[^a-z{}' ]", " ", phrase.lower()).split())

    trained = {bare(phrase) for phrase in [core for core, _ in _ASKED] + BRIEF + SIGNATURE}
    assert not trained & {bare(phrase) for phrase in UNSEEN}


assert_disjoint()
