// Vercel AI SDK: text, streams, tools and objects, by chat completions, responses and messages.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import * as task from "./node_task.mjs";

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const anthropic = createAnthropic({
  baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1`,
  apiKey: process.env.ANTHROPIC_API_KEY,
});
const tools = {
  get_weather: tool({
    description: "Get the weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async (input) => task.getWeather(input),
  }),
  multiply: tool({
    description: "Multiply two numbers.",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    execute: async (input) => task.multiply(input),
  }),
};
const person = z.object({ name: z.string(), age: z.number().int() });
for (const [model, words] of [
  [openai.chat(task.MODEL), task.OPENAI_SAYS],
  [openai(task.MODEL), task.OPENAI_SAYS],
  [anthropic(task.CLAUDE), task.ANTHROPIC_SAYS],
]) {
  const asked = { model, maxOutputTokens: 500, maxRetries: 0 };
  const pieces = [];
  for await (const piece of streamText({ ...asked, prompt: task.GREETING }).textStream) pieces.push(piece);
  task.checkAnswer((await generateText({ ...asked, prompt: task.GREETING })).text, pieces);
  task.checkTools((await generateText({ ...asked, prompt: task.QUESTION, tools, stopWhen: stepCountIs(5) })).text);
  const held = await generateText({ ...asked, prompt: task.EXTRACT, output: Output.object({ schema: person }) });
  task.checkPerson(held.output);
  await task.checkRefused(() => generateText({ ...asked, prompt: task.TOO_LONG }), APICallError, words);
}
