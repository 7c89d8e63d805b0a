// openai for JavaScript: chat completions, with its tool runner and parser.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import * as task from "./node_task.mjs";

const client = new OpenAI({ maxRetries: 0 });
const said = (content) => ({ model: task.MODEL, messages: [{ role: "user", content }] });
const answer = (await client.chat.completions.create(said(task.GREETING))).choices[0].message.content;
const pieces = [];
for await (const chunk of await client.chat.completions.create({ ...said(task.GREETING), stream: true }))
  if (chunk.choices[0]?.delta.content) pieces.push(chunk.choices[0].delta.content);
task.checkAnswer(answer, pieces);
const tools = [
  zodFunction({ name: "get_weather", parameters: z.object({ city: z.string() }), function: task.getWeather }),
  zodFunction({ name: "multiply", parameters: z.object({ a: z.number(), b: z.number() }), function: task.multiply }),
];
task.checkTools(await client.chat.completions.runTools({ ...said(task.QUESTION), tools }).finalContent());
const person = z.object({ name: z.string(), age: z.number().int() });
const held = await client.chat.completions.parse({
  ...said(task.EXTRACT),
  response_format: zodResponseFormat(person, "person"),
});
task.checkPerson(held.choices[0].message.parsed);
await task.checkRefused(
  () => client.chat.completions.create(said(task.TOO_LONG)),
  OpenAI.BadRequestError,
  task.OPENAI_SAYS,
);
