// Asks the search of a built site, as its pages do: `node ask_search.js WORKER INDEX SCRIPT`, with a JSON list of queries on
// stdin. Prints, for each query, the locations of its results: one list for each page, best first.
const fs = require("fs");
const [worker, index, script] = process.argv.slice(2).map((path) => fs.readFileSync(path, "utf8"));
let listen, answer;
Object.assign(globalThis, {
  self: globalThis,
  addEventListener: (_, listener) => (listen = listener),
  postMessage: (message) => answer(message.data),
  Worker: class {
    postMessage(data) {
      listen({ data });
    }
  },
});
for (const code of [worker, script]) (0, eval)(code);

const ask = (message) =>
  new Promise((resolve) => {
    answer = resolve;
    new Worker().postMessage(message);
  });

(async () => {
  const { config, docs } = JSON.parse(index);
  await ask({ type: 0, data: { config, docs, options: { suggest: false } } });
  const found = {};
  for (const query of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const { items } = await ask({ type: 2, data: query });
    found[query] = items.map((sections) => sections.map((section) => section.location));
  }
  console.log(JSON.stringify(found));
})();
