"""The cores of questions for a description: those that the model is trained on, and those that only its test asks."""

from __future__ import annotations

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
