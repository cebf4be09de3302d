// A client of the matrix with the TypeScript SDK 1, whose folder is the first argument.

import { CAPABILITIES, answers, http, main, open } from './walk.mjs';

const folder = process.argv[2];
const { Client } = await import(`${folder}/dist/esm/client/index.js`);
const { StreamableHTTPClientTransport } = await import(
  `${folder}/dist/esm/client/streamableHttp.js`
);
const types = await import(`${folder}/dist/esm/types.js`);

await main(async (given) => {
  const who = { name: 'matrix-1', version: '1' };
  const client = new Client(who, { capabilities: CAPABILITIES });
  const { elicit, sample } = answers(given);
  client.setRequestHandler(types.ElicitRequestSchema, elicit);
  client.setRequestHandler(types.CreateMessageRequestSchema, sample);
  await client.connect(new StreamableHTTPClientTransport(...http(given)));
  return open(client, [undefined]);
});
