"""What people say around a question, and all that they ask for besides a description."""

from __future__ import annotations

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

NAMELESS = """\
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
