// What the node clients of the matrix share: walks one server and prints a line for each check.
// The options, the plan and the lines are those of walk.py; where the SDK or the program is comes
// before the revision.

import { setTimeout } from 'node:timers/promises';
import { parseArgs } from 'node:util';

const CHECK_MS_MAX = 40_000;

function say(check, why) {
  const ok = why === undefined;
  process.stdout.write(`${JSON.stringify(ok ? { check, ok } : { check, ok, why })}\n`);
}

function holds(found, wanted) {
  if (!found.includes(wanted)) {
    throw new Error(`${JSON.stringify(found)} does not hold ${JSON.stringify(wanted)}`);
  }
}

function words(error) {
  const cause = error?.cause === undefined ? '' : ` (${error.cause})`;
  return `${error}${cause}`.replace(/\s+/g, ' ').slice(0, 600);
}

export function texts(blocks) {
  return blocks.map((block) => block.text ?? '').join('\n');
}

const CHECKS = {
  async tools(session, wanted) {
    const found = await session.tools();
    for (const name of wanted) holds(found, name);
  },
  async call(session, plan) {
    holds(await session.call(plan.name, plan.arguments), plan.contains);
  },
  async progress(session, plan) {
    const told = [];
    const hear = ({ progress, total }) => told.push([progress, total]);
    await session.call(plan.name, plan.arguments, hear);
    const wanted = Array.from({ length: plan.steps }, (_, step) => [step + 1, plan.steps]);
    // What comes with the answer itself some SDKs hand over a moment later.
    for (let turn = 0; told.length < plan.steps && turn < 100; turn += 1) await setTimeout(20);
    holds([JSON.stringify(told)], JSON.stringify(wanted));
  },
  async resource(session, plan) {
    holds(await session.resources(), plan.uri);
    holds(await session.read(plan.uri), plan.contains);
  },
  async prompt(session, plan) {
    holds(await session.prompts(), plan.name);
    holds(await session.prompt(plan.name, plan.arguments), plan.contains);
  },
};
// The answer is given by the handler that the session was opened with.
CHECKS.elicitation = CHECKS.call;
CHECKS.sampling = CHECKS.call;

async function within(promise) {
  const late = setTimeout(CHECK_MS_MAX, 'late', { ref: false });
  if ((await Promise.race([promise, late])) === 'late') throw new Error('no answer in time');
}

// `connect` opens a session that has a function for each thing the checks above ask of it.
export async function main(connect) {
  const text = { type: 'string' };
  const options = { url: text, token: text, plan: text };
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  const { url, token, plan } = values;
  const [, revision] = positionals;
  const wanted = JSON.parse(plan);
  const answers = { elicited: wanted.elicitation?.answer, sampled: wanted.sampling?.answer };
  let session;
  try {
    session = await connect({ url, token, revision, ...answers });
    // Whoever is given a revision and speaks another has not connected.
    if (revision !== undefined) holds([await session.revision()], revision);
    say('connect');
  } catch (error) {
    say('connect', words(error));
    return;
  }
  for (const [check, part] of Object.entries(wanted)) {
    try {
      await within(CHECKS[check](session, part));
      say(check);
    } catch (error) {
      say(check, words(error));
    }
  }
  await session.close().catch((error) => process.stderr.write(`while it closed: ${error}\n`));
}

// A session of either SDK; they differ in what `callTool` takes before its options.
export function open(client, beforeOptions) {
  return {
    tools: async () => (await client.listTools()).tools.map((tool) => tool.name),
    async call(name, args, onprogress) {
      const asked = { name, arguments: args };
      const result = await client.callTool(asked, ...beforeOptions, { onprogress });
      if (result.isError) throw new Error(texts(result.content));
      return texts(result.content);
    },
    resources: async () => (await client.listResources()).resources.map(({ uri }) => uri),
    read: async (uri) => texts((await client.readResource({ uri })).contents),
    prompts: async () => (await client.listPrompts()).prompts.map((prompt) => prompt.name),
    async prompt(name, args) {
      const { messages } = await client.getPrompt({ name, arguments: args });
      return texts(messages.map((message) => message.content));
    },
    close: () => client.close(),
  };
}

// What the handlers of both SDKs answer.
export function answers({ elicited, sampled }) {
  const content = { type: 'text', text: sampled };
  return {
    elicit: () => ({ action: 'accept', content: elicited }),
    sample: () => ({ role: 'assistant', model: 'fixed', content }),
  };
}

// The arguments of the HTTP transport of both SDKs.
export function http({ url, token }) {
  return [new URL(url), { requestInit: { headers: { Authorization: `Bearer ${token}` } } }];
}

export const CAPABILITIES = { elicitation: {}, sampling: {} };
