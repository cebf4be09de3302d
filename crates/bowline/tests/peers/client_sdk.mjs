// Walks a plan with the TypeScript SDK 1, whose folder is the first argument.

import { http, main } from './walk.mjs';

const folder = process.argv[2];
const { Client } = await import(`${folder}/dist/esm/client/index.js`);
const { StdioClientTransport } = await import(`${folder}/dist/esm/client/stdio.js`);
const { StreamableHTTPClientTransport } = await import(
  `${folder}/dist/esm/client/streamableHttp.js`
);

function connect(target) {
  const client = new Client({ name: 'peers-sdk', version: '1' });
  if (target.url !== undefined) {
    const transport = new StreamableHTTPClientTransport(...http(target));
    return { client, transport, beforeOptions: [undefined] };
  }
  const { command, args, env } = target;
  const transport = new StdioClientTransport({ command, args, env });
  // Over stdio this SDK tells nobody else which revision it agreed on.
  transport.setProtocolVersion = (revision) => {
    transport.protocolVersion = revision;
  };
  return { client, transport, beforeOptions: [undefined] };
}

await main(connect, []);
