// @langchain/openai: a chat model.
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import * as task from "./node_task.mjs";

const model = new ChatOpenAI({ model: task.MODEL, maxRetries: 0 });
const pieces = [];
for await (const chunk of await model.stream(task.GREETING)) if (chunk.text) pieces.push(chunk.text);
task.checkAnswer((await model.invoke(task.GREETING)).text, pieces);
const number = { type: "integer" };
const definition = (name, properties) => ({
  type: "function",
  function: { name, parameters: { type: "object", properties, required: Object.keys(properties) } },
});
const bound = model.bindTools([
  definition("get_weather", { city: { type: "string" } }),
  definition("multiply", { a: number, b: number }),
]);
const messages = [{ role: "user", content: task.QUESTION }];
const reply = await bound.invoke(messages);
messages.push(reply);
for (const call of reply.tool_calls)
  messages.push({ role: "tool", tool_call_id: call.id, content: task.runTool(call.name, call.args) });
task.checkTools((await bound.invoke(messages)).text);
const person = z.object({ name: z.string(), age: z.number().int() });
task.checkPerson(await model.withStructuredOutput(person, { method: "jsonSchema" }).invoke(task.EXTRACT));
await task.checkRefused(() => model.invoke(task.TOO_LONG), Error, task.OPENAI_SAYS);
