// @openai/agents: agents by the Responses API.
import { Agent, run, setTracingDisabled, tool } from "@openai/agents";
import { z } from "zod";
import * as task from "./node_task.mjs";

setTracingDisabled(true);
const settings = { name: "assistant", instructions: "You are a helpful assistant.", model: task.MODEL };
const plain = new Agent(settings);
const streamed = await run(plain, task.GREETING, { stream: true });
const pieces = [];
for await (const piece of streamed.toTextStream()) pieces.push(piece);
task.checkAnswer((await run(plain, task.GREETING)).finalOutput, pieces);
const tools = [
  tool({
    name: "get_weather",
    description: "Get the weather in a city.",
    parameters: z.object({ city: z.string() }),
    execute: task.getWeather,
  }),
  tool({
    name: "multiply",
    description: "Multiply two numbers.",
    parameters: z.object({ a: z.number(), b: z.number() }),
    execute: task.multiply,
  }),
];
task.checkTools((await run(new Agent({ ...settings, tools }), task.QUESTION)).finalOutput);
const outputType = z.object({ name: z.string(), age: z.number().int() });
task.checkPerson((await run(new Agent({ ...settings, outputType }), task.EXTRACT)).finalOutput);
await task.checkRefused(() => run(plain, task.TOO_LONG), Error, task.OPENAI_SAYS);
