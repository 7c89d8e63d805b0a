/** The request that the form stands for, and how a program would send it. */

/** What is typed in the form, as texts. */
export interface Question {
  model: string;
  system: string;
  user: string;
  lane: string;
  maxTokens: string;
  temperature: string;
}

/** The body of a chat completion. */
export interface Body {
  model: string;
  messages: { role: 'system' | 'user'; content: string }[];
  service_tier?: string;
  max_completion_tokens?: number;
  temperature?: number;
}

/** Lane to the API's `service_tier`; the standard lane needs none. */
const TIERS: Record<string, string | undefined> = { interactive: 'priority', batch: 'flex' };

/** The body that a question makes; what is empty is left out. */
export function bodyOf(question: Question): Body {
  const body: Body = { model: question.model, messages: [{ role: 'user', content: question.user }] };
  if (question.system !== '') body.messages.unshift({ role: 'system', content: question.system });
  const tier = TIERS[question.lane];
  if (tier !== undefined) body.service_tier = tier;
  if (question.maxTokens !== '') body.max_completion_tokens = Number(question.maxTokens);
  if (question.temperature !== '') body.temperature = Number(question.temperature);
  return body;
}

/** The call in a shell: the key is in the environment, and no text of the body ends the quotes. */
export function asCurl(origin: string, body: Body): string {
  const text = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return [
    `curl ${origin}/v1/chat/completions \\`,
    '  -H "authorization: Bearer $TURNPIKE_API_KEY" -H "content-type: application/json" \\',
    `  -d '${text}'`,
  ].join('\n');
}

/** The call with OpenAI's client for Python. */
export function asPython(origin: string, body: Body): string {
  const fields = Object.entries(body).map(([name, value]) => `    ${name}=${pythonOf(value)},`);
  return [
    'import os',
    '',
    'from openai import OpenAI',
    '',
    `client = OpenAI(base_url="${origin}/v1", api_key=os.environ["TURNPIKE_API_KEY"])`,
    'answer = client.chat.completions.create(',
    ...fields,
    ')',
    'print(answer.choices[0].message.content)',
  ].join('\n');
}

/** A value of the body in Python: its texts, numbers, lists and objects are written as in JSON. */
function pythonOf(value: unknown): string {
  return JSON.stringify(value, null, 4).replaceAll('\n', '\n    ');
}
