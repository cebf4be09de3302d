// Walks a plan with the TypeScript client 2, whose folder is the first argument.

import { http, main, watchProbes } from './walk.mjs';

const folder = process.argv[2];
const { Client, StreamableHTTPClientTransport } = await import(`${folder}/dist/index.mjs`);
const { StdioClientTransport } = await import(`${folder}/dist/stdio.mjs`);

const probes = [];
watchProbes([StreamableHTTPClientTransport, StdioClientTransport], probes);

function connect(target) {
  const who = { name: 'peers-client', version: '2' };
  const client = new Client(who, { versionNegotiation: { mode: target.mode } });
  if (target.url !== undefined) {
    const transport = new StreamableHTTPClientTransport(...http(target));
    return { client, transport, beforeOptions: [] };
  }
  const { command, args, env } = target;
  const transport = new StdioClientTransport({ command, args, env });
  return { client, transport, beforeOptions: [] };
}

await main(connect, probes);
