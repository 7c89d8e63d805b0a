// @anthropic-ai/sdk: messages, by hand.
import Anthropic from "@anthropic-ai/sdk";
import { zodOutputFormat } from "@anthropic-ai/sdk/helpers/zod";
import { z } from "zod";
import * as task from "./node_task.mjs";

const client = new Anthropic({ maxRetries: 0 });
const said = (content) => ({ model: task.CLAUDE, max_tokens: 500, messages: [{ role: "user", content }] });
const answer = (await client.messages.create(said(task.GREETING))).content[0].text;
const pieces = [];
await client.messages
  .stream(said(task.GREETING))
  .on("text", (piece) => pieces.push(piece))
  .finalMessage();
task.checkAnswer(answer, pieces);
const number = { type: "integer" };
const tools = [
  { name: "get_weather", input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } },
  { name: "multiply", input_schema: { type: "object", properties: { a: number, b: number }, required: ["a", "b"] } },
];
const asked = { ...said(task.QUESTION), tools };
const first = await client.messages.create(asked);
const results = first.content
  .filter((block) => block.type === "tool_use")
  .map((block) => ({ type: "tool_result", tool_use_id: block.id, content: task.runTool(block.name, block.input) }));
asked.messages.push({ role: "assistant", content: first.content }, { role: "user", content: results });
task.checkTools((await client.messages.create(asked)).content[0].text);
const person = z.object({ name: z.string(), age: z.number().int() });
const held = await client.messages.parse({
  ...said(task.EXTRACT),
  output_config: { format: zodOutputFormat(person) },
});
task.checkPerson(held.parsed_output);
await task.checkRefused(
  () => client.messages.create(said(task.TOO_LONG)),
  Anthropic.BadRequestError,
  task.ANTHROPIC_SAYS,
);
