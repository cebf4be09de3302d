// A client of the matrix: the Inspector's command line, whose program is the first argument.

import { tmpdir } from 'node:os';

import { run } from './program.mjs';
import { main, texts } from './walk.mjs';

const program = process.argv[2];

await main(async ({ url, token, revision }) => {
  async function ask(method, ...more) {
    const where = [url, '--transport', 'http', '--header', `Authorization: Bearer ${token}`];
    // Its modern era is one revision, without a way back.
    const era = revision === undefined ? [] : ['--protocol-era', 'modern'];
    const args = ['--cli', ...where, ...era, '--method', method, ...more, '--format', 'json'];
    // What it keeps between runs has no place in the home of whoever runs this.
    const env = { MCP_INSPECTOR_SECRET_STORE: 'memory', HOME: process.env.MATRIX_HOME ?? tmpdir() };
    return JSON.parse(await run(program, args, env)).result;
  }
  const pairs = (flag, all) =>
    Object.entries(all).flatMap(([key, value]) => [flag, `${key}=${value}`]);
  const tools = await ask('tools/list');
  return {
    revision: async () => (await ask('initialize')).protocolVersion,
    tools: async () => tools.tools.map((tool) => tool.name),
    async call(name, args) {
      const given = ['--tool-name', name, '--tool-args-json', JSON.stringify(args)];
      return texts((await ask('tools/call', ...given)).content);
    },
    resources: async () => (await ask('resources/list')).resources.map(({ uri }) => uri),
    read: async (uri) => texts((await ask('resources/read', '--uri', uri)).contents),
    prompts: async () => (await ask('prompts/list')).prompts.map((prompt) => prompt.name),
    async prompt(name, args) {
      const given = ['--prompt-name', name, ...pairs('--prompt-args', args)];
      const { messages } = await ask('prompts/get', ...given);
      return texts(messages.map((message) => message.content));
    },
    close: async () => {},
  };
});
