// What both TypeScript clients share: reads the plan, walks its targets, prints the raw results.
// The plan and what comes out are those of client.py.

import { existsSync, writeFileSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';

async function text(stream) {
  let all = '';
  for await (const chunk of stream) all += chunk;
  return all;
}

// Records the errors that answer `server/discover`, which the client keeps to itself. The probe
// of stdio runs in a process and a transport of its own, so the classes are tapped.
export function watchProbes(classes, probes) {
  for (const Transport of classes) {
    const send = Transport.prototype.send;
    Transport.prototype.send = async function (message, ...rest) {
      if (message.method === 'server/discover') {
        const hear = this.onmessage;
        this.onmessage = (answer, ...more) => {
          if (answer.id === message.id) {
            probes.push(answer.error === undefined ? 'result' : answer.error.code);
          }
          return hear?.call(this, answer, ...more);
        };
      }
      return send.call(this, message, ...rest);
    };
  }
}

// Outlives a pause, calls at once, gives up, and hears of a change.
async function work({ client, beforeOptions }, target, changed) {
  const call = (name, args, options) =>
    client.callTool({ name, arguments: args }, ...beforeOptions, options);
  if (target.pause !== undefined) {
    writeFileSync(target.pause.ready, '');
    while (!existsSync(target.pause.go)) await setTimeout(20);
    const result = await call(target.echo, { message: 'again' });
    if (result.content[0].text !== 'again') throw new Error(JSON.stringify(result));
  }
  if (target.echo !== undefined) {
    const calls = Array.from({ length: 30 }, (_, n) => call(target.echo, { message: `<${n}>` }));
    (await Promise.all(calls)).forEach((result, n) => {
      if (result.content[0].text !== `<${n}>`) throw new Error(`${n} got another's answer`);
    });
  }
  if (target.slow !== undefined) {
    const cancelled = async () =>
      (await call(target.counter, {})).structuredContent.slow_cancelled;
    const before = await cancelled();
    const late = { ms: 600_000, message: 'late' };
    const signal = AbortSignal.timeout(300);
    const end = await call(target.slow, late, { signal }).catch(() => 'given up');
    if (end !== 'given up') throw new Error('was not given up');
    const deadline = Date.now() + 20_000;
    while ((await cancelled()) === before) {
      if (Date.now() > deadline) throw new Error('the server was not told');
    }
  }
  if (target.change === undefined) return null;
  // Without a session only those hear of changes who listen for them.
  const modern = (client.getNegotiatedProtocolVersion?.() ?? '') >= '2026';
  const listening = modern ? await client.listen({ toolsListChanged: true }) : null;
  await call(target.change, {});
  const late = setTimeout(20_000, 'late', { ref: false });
  if ((await Promise.race([changed, late])) === 'late') throw new Error('no word');
  await listening?.close();
  return (await client.listTools()).tools.map((tool) => tool.name);
}

async function walk(connected, target, probes) {
  const { client, transport, beforeOptions } = connected;
  let change;
  const changed = new Promise((resolve) => (change = resolve));
  probes.length = 0;
  const seen = [];
  const progress = [];
  // Asks for progress, which is then read off the wire: the SDK drops what it has not handled
  // when the answer comes.
  const onprogress = () => {};
  await client.connect(transport);
  const hear = transport.onmessage;
  transport.onmessage = (message, ...rest) => {
    if (message.result !== undefined) seen.push(structuredClone(message.result));
    if (message.method === 'notifications/tools/list_changed') change();
    if (message.method === 'notifications/progress') {
      const { progressToken, ...said } = message.params;
      progress.push(said);
    }
    return hear.call(transport, message, ...rest);
  };
  const listed = await client.listTools();
  const tools = seen.pop();
  if (listed.tools.length !== tools.tools.length) throw new Error('the SDK lost a tool');
  const results = [];
  for (const [name, args] of target.calls) {
    await client.callTool({ name, arguments: args }, ...beforeOptions, { onprogress });
    results.push(seen.pop());
  }
  const walked = {
    revision: transport.protocolVersion ?? client.getNegotiatedProtocolVersion?.() ?? null,
    serverInfo: client.getServerVersion(),
    probes: [...probes],
    tools,
    results,
    progress,
    changed: await work(connected, target, changed),
  };
  await client.close();
  return walked;
}

// `connect` makes the client and the transport of a target, and says what the SDK's `callTool`
// takes before its options.
export async function main(connect, probes) {
  const plan = JSON.parse(await text(process.stdin));
  const targets = [];
  for (const target of plan.targets) {
    targets.push(await walk(connect(target), target, probes));
  }
  process.stdout.write(JSON.stringify({ targets }));
}

// The arguments of an HTTP transport to this target.
export function http(target) {
  const headers = { Authorization: `Bearer ${target.token}` };
  return [new URL(target.url), { requestInit: { headers } }];
}
