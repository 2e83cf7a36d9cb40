// Node: http, and fifty sockets at once with half-close and refusals. Arguments: URL, file it serves, echo, nobody.
'use strict';
const assert = require('assert');
const fs = require('fs');
const http = require('http');
const net = require('net');

const [url, path, echo, nobody] = process.argv.slice(2);
const address = (text) => ({ host: text.split(':')[0], port: Number(text.split(':')[1]), allowHalfOpen: true });

const get = () => new Promise((resolve, reject) => {
  http.get(`${url}/data`, (response) => {
    const parts = [];
    response.on('data', (part) => parts.push(part));
    response.on('end', () => resolve(Buffer.concat(parts)));
  }).on('error', reject);
});

const talk = (i) => new Promise((resolve, reject) => {
  const sent = Buffer.alloc(100003, i);
  const got = [];
  const socket = net.connect(address(echo), () => {
    assert.strictEqual(`${socket.remoteAddress}:${socket.remotePort}`, echo);
    socket.end(sent);
  });
  socket.on('data', (part) => got.push(part));
  socket.on('end', () => {
    assert(Buffer.concat(got).equals(sent));
    resolve();
  });
  socket.on('error', reject);
});

const refused = () => new Promise((resolve, reject) => {
  net.connect(address(nobody)).on('error', (error) => {
    assert.strictEqual(error.code, 'ECONNREFUSED');
    resolve();
  }).on('connect', () => reject(new Error('nobody answered')));
});

const givenUp = () => new Promise((resolve) => {
  const socket = net.connect(address(echo));
  socket.on('close', resolve);
  setImmediate(() => socket.destroy());
});

(async () => {
  assert((await get()).equals(fs.readFileSync(path)));
  await Promise.all([...Array(50).keys()].flatMap((i) => [talk(i), refused(), givenUp()]));
  console.log('ok');
})();
