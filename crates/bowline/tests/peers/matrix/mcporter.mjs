// A client of the matrix: mcporter, whose program is the first argument. It lists and calls tools.

import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { run } from './program.mjs';
import { main } from './walk.mjs';

const program = process.argv[2];

await main(async ({ url, token }) => {
  const folder = await mkdtemp(join(tmpdir(), 'mcporter-'));
  const config = join(folder, 'mcporter.json');
  const headers = { Authorization: `Bearer ${token}` };
  const server = { baseUrl: url, headers };
  await writeFile(config, JSON.stringify({ mcpServers: { it: server }, imports: [] }));
  // A home of its own, so that it finds nobody's configuration and leaves nothing behind.
  const ask = (...args) => run(program, ['--config', config, ...args], { HOME: folder });
  const listed = JSON.parse(await ask('list', 'it', '--json'));
  if (listed.status !== 'ok') throw new Error(JSON.stringify(listed));
  return {
    tools: async () => listed.tools.map((tool) => tool.name),
    async call(name, args) {
      const given = ['--args', JSON.stringify(args), '--output', 'text'];
      return ask('call', '--server', 'it', '--tool', name, ...given);
    },
    close: () => rm(folder, { recursive: true, force: true }),
  };
});
