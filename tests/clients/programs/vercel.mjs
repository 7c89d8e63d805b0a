// Vercel AI SDK: text with two tools, by chat completions and by messages.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const openai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey: process.env.OPENAI_API_KEY });
const anthropic = createAnthropic({
  baseURL: `${process.env.ANTHROPIC_BASE_URL}/v1`,
  apiKey: process.env.ANTHROPIC_API_KEY,
});
for (const model of [openai.chat("gpt-4o"), anthropic("claude-sonnet-4-5")]) {
  const called = [];
  const { text } = await generateText({
    model,
    prompt: "What is the weather in Lisbon, and what is 17 times 4?",
    maxOutputTokens: 500,
    stopWhen: stepCountIs(5),
    tools: {
      get_weather: tool({
        description: "Get the weather in a city.",
        inputSchema: z.object({ city: z.string() }),
        execute: async ({ city }) => (called.push(city), `It is sunny in ${city}, 21 degrees.`),
      }),
      multiply: tool({
        description: "Multiply two numbers.",
        inputSchema: z.object({ a: z.number(), b: z.number() }),
        execute: async ({ a, b }) => (called.push(a, b), String(a * b)),
      }),
    },
  });
  if (JSON.stringify(called) !== '["Lisbon",17,4]') throw new Error(`called ${JSON.stringify(called)}`);
  if (!text.includes("21 degrees") || !text.includes("68")) throw new Error(text);
}
console.log("done");
