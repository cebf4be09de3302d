// A server of the matrix with the TypeScript server 2, whose node_modules is the first argument;
// over stdio, or over HTTP at the port it is given, with a session for each client.

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';

const [, , modules, port] = process.argv;
const scope = `${modules}/@modelcontextprotocol`;
const { McpServer } = await import(`${scope}/server/dist/index.mjs`);
const { NodeStreamableHTTPServerTransport } = await import(`${scope}/node/dist/index.mjs`);
const { StdioServerTransport } = await import(`${scope}/server/dist/stdio.mjs`);
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

function asks(server) {
  server.registerTool('ask', { inputSchema: z.object({}) }, async (_arguments, context) => {
    const properties = { knot: { type: 'string' } };
    const requestedSchema = { type: 'object', properties, required: ['knot'] };
    const asked = { message: 'Which knot?', requestedSchema };
    const { action, content } = await context.mcpReq.elicitInput(asked);
    return said(`${action}: ${content?.knot ?? ''}`);
  });
  const about = z.object({ about: z.string() });
  server.registerTool('think', { inputSchema: about }, async ({ about: text }, context) => {
    const messages = [{ role: 'user', content: { type: 'text', text } }];
    const answer = await context.mcpReq.requestSampling({ messages, maxTokens: 100 });
    return said(`thought: ${answer.content.text}`);
  });
}

function build() {
  const server = new McpServer({ name: 'matrix-typescript-2', version: '1' });
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
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: () => randomUUID(),
    onsessioninitialized: (made) => sessions.set(made, transport),
    onsessionclosed: (closed) => sessions.delete(closed),
  });
  await build().connect(transport);
  return transport.handleRequest(request, response);
}

if (port === undefined) {
  await build().connect(new StdioServerTransport());
} else {
  const sessions = new Map();
  const http = createServer((request, response) => serve(request, response, sessions));
  http.listen(Number(port), '127.0.0.1');
}
