// What every client in JavaScript does; task.py says the same in Python.
export const MODEL = "gpt-4o";
export const CLAUDE = "claude-sonnet-4-5";
export const QUESTION = "What is the weather in Lisbon, and what is 17 times 4?";
export const GREETING = "Hello! Who are you?";
export const EXTRACT = "Extract: Jason is 25 years old";
export const TOO_LONG = "word ".repeat(20_000);
export const OPENAI_SAYS = "maximum context length is 8192 tokens";
export const ANTHROPIC_SAYS = "prompt is too long: ";
let called = [];

export const getWeather = ({ city }) => (called.push(["get_weather", city]), `It is sunny in ${city}, 21 degrees.`);
export const multiply = ({ a, b }) => (called.push(["multiply", a, b]), String(a * b));
export const runTool = (name, input) => ({ get_weather: getWeather, multiply })[name](input);

const did = (what) => console.log(what);
const demand = (holds, seen) => {
  if (!holds) throw new Error(`not as it should be: ${JSON.stringify(seen)}`);
};

// There is an answer, and the same one streamed in pieces.
export function checkAnswer(answer, pieces) {
  demand(answer.trim(), answer);
  did("answer");
  demand(pieces.length > 1 && pieces.join("") === answer, [pieces, answer]);
  did("stream");
}

export function checkTools(answer) {
  demand(JSON.stringify(called.sort()) === '[["get_weather","Lisbon"],["multiply",17,4]]', called);
  called = [];
  demand(answer.includes("21 degrees") && answer.includes("68"), answer);
  did("tools");
}

export function checkPerson(person) {
  demand(typeof person.name === "string" && person.name && Number.isInteger(person.age), person);
  did("structure");
}

// The attempt ends with this kind of error, whose text has these words.
export async function checkRefused(attempt, kind, words) {
  try {
    await attempt();
  } catch (error) {
    demand(error instanceof kind && error.message.includes(words), String(error));
    did("error");
    return;
  }
  throw new Error("a prompt that is too long was taken");
}
