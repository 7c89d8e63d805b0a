// @anthropic-ai/sdk: the tool runner, which asks for threads of the server's and does without them.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import * as task from "./node_task.mjs";

const tools = [
  betaZodTool({
    name: "get_weather",
    description: "Get the weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    run: task.getWeather,
  }),
  betaZodTool({
    name: "multiply",
    description: "Multiply two numbers.",
    inputSchema: z.object({ a: z.number(), b: z.number() }),
    run: task.multiply,
  }),
];
const messages = [{ role: "user", content: task.QUESTION }];
const last = await new Anthropic({ maxRetries: 0 }).beta.messages.toolRunner({
  model: task.CLAUDE,
  max_tokens: 500,
  messages,
  tools,
});
task.checkTools(last.content[0].text);
