// A server of the matrix with the TypeScript server 2, whose node_modules is the first argument;
// over stdio, or over HTTP at the port it is given, with a session for each client. With the word
// `modern` it serves revision 2026-07-28 only, and its tools ask in the way of it.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

const [, , modules, ...words] = process.argv;
const port = words.find((word) => /^\d+$/.test(word));
const modern = words.includes('modern');
const scope = `${modules}/@modelcontextprotocol`;
const sdk = await import(`${scope}/server/dist/index.mjs`);
const node = await import(`${scope}/node/dist/index.mjs`);
const stdio = await import(`${scope}/server/dist/stdio.mjs`);
const { z } = await import(`${modules}/zod/index.js`);

const said = (text) => ({ content: [{ type: 'text', text }] });

function tools(server) {
  const numbers = z.object({ a: z.number(), b: z.number() });
  server.registerTool('add', { inputSchema: numbers }, async ({ a, b }) =>
    said(`the sum is ${a + b}`),
  );
  const steps = z.object({ steps: z.number() });
  server.registerTool('count', { inputSchema: steps }, async ({ steps: total }, context) => {
    const { progressToken } = context.mcpReq._meta ?? {};
    for (let progress = 1; progressToken !== undefined && progress <= total; progress += 1) {
      const params = { progressToken, progress, total };
      await context.mcpReq.notify({ method: 'notifications/progress', params });
    }
    return said(`counted to ${total}`);
  });
}

// Asks with a result, and returns what is made of the answer that the next request brings.
function guarded(context, request, answered) {
  const answer = sdk.inputResponse(context.mcpReq.inputResponses, 'it');
  if (answer.kind === 'missing') {
    return sdk.inputRequired({ inputRequests: { it: request }, requestState: 'asked' });
  }
  const state = context.mcpReq.requestState();
  if (state !== 'asked') throw new Error(`the state is ${state}`);
  return answered(answer);
}

function asks(server) {
  server.registerTool('ask', { inputSchema: z.object({}) }, async (_arguments, context) => {
    const properties = { knot: { type: 'string' } };
    const requestedSchema = { type: 'object', properties, required: ['knot'] };
    const asked = { message: 'Which knot?', requestedSchema };
    const told = ({ action, content }) => said(`${action}: ${content?.knot ?? ''}`);
    if (modern) return guarded(context, sdk.inputRequired.elicit(asked), told);
    return told(await context.mcpReq.elicitInput(asked));
  });
  const about = z.object({ about: z.string() });
  server.registerTool('think', { inputSchema: about }, async ({ about: text }, context) => {
    const messages = [{ role: 'user', content: { type: 'text', text } }];
    const asked = { messages, maxTokens: 100 };
    const told = ({ result }) => said(`thought: ${result.content.text}`);
    if (modern) return guarded(context, sdk.inputRequired.createMessage(asked), told);
    return told({ result: await context.mcpReq.requestSampling(asked) });
  });
}

function build() {
  const server = new sdk.McpServer({ name: 'matrix-typescript-2', version: '1' });
  tools(server);
  asks(server);
  server.registerResource('bowline', 'knots://bowline', {}, async (uri) => ({
    contents: [{ uri: uri.href, text: 'holds and never slips' }],
  }));
  const knot = z.object({ knot: z.string() });
  server.registerPrompt('tie', { argsSchema: knot }, ({ knot: name }) => ({
    messages: [{ role: 'user', content: { type: 'text', text: `Tie a ${name}.` } }],
  }));
  return server;
}

async function serve(request, response, sessions) {
  const id = request.headers['mcp-session-id'];
  if (id !== undefined && !sessions.has(id)) return response.writeHead(404).end();
  if (id !== undefined) return sessions.get(id).handleRequest(request, response);
  const transport = new node.NodeStreamableHTTPServerTransport({
    sessionIdGenerator: () => randomUUID(),
    onsessioninitialized: (made) => sessions.set(made, transport),
    onsessionclosed: (closed) => sessions.delete(closed),
  });
  await build().connect(transport);
  return transport.handleRequest(request, response);
}

function listener() {
  if (modern) return node.toNodeHandler(sdk.createMcpHandler(build, { legacy: 'reject' }));
  const sessions = new Map();
  return (request, response) => serve(request, response, sessions);
}

if (port !== undefined) {
  createServer(listener()).listen(Number(port), '127.0.0.1');
} else if (modern) {
  stdio.serveStdio(build, { legacy: 'reject' });
} else {
  await build().connect(new stdio.StdioServerTransport());
}
