// A client of the matrix with the TypeScript client 2, whose folder is the first argument.

import { CAPABILITIES, answers, http, main, open } from './walk.mjs';

const folder = process.argv[2];
const { Client, StreamableHTTPClientTransport } = await import(`${folder}/dist/index.mjs`);

await main(async (given) => {
  const who = { name: 'matrix-2', version: '2' };
  const { revision } = given;
  const pinned = revision === undefined ? {} : { versionNegotiation: { mode: { pin: revision } } };
  const client = new Client(who, { capabilities: CAPABILITIES, ...pinned });
  const { elicit, sample } = answers(given);
  client.setRequestHandler('elicitation/create', elicit);
  client.setRequestHandler('sampling/createMessage', sample);
  await client.connect(new StreamableHTTPClientTransport(...http(given)));
  const session = open(client, []);
  return { ...session, revision: async () => client.getNegotiatedProtocolVersion() };
});
