// Runs a command-line client once for each request.

import { spawn } from 'node:child_process';

async function text(stream) {
  let all = '';
  for await (const chunk of stream) all += chunk;
  return all;
}

// Returns what the program wrote; an unsuccessful end is an error that repeats its words.
export async function run(program, args, env) {
  const child = spawn(process.execPath, [program, ...args], {
    env: { ...process.env, ...env },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const ended = new Promise((resolve) => child.on('close', resolve));
  const [stdout, stderr, code] = await Promise.all([
    text(child.stdout),
    text(child.stderr),
    ended,
  ]);
  if (code !== 0) throw new Error(`exit ${code}: ${stdout} ${stderr}`);
  return stdout;
}
