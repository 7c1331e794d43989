// Types queries into the search of a built site, with its own worker: node site_search.js SITE < queries (JSON) > results (JSON).
// A result is the hits as a reader sees them: pages in their order, each with its sections.
const fs = require("fs")
const path = require("path")
const vm = require("vm")

const site = process.argv[2]
const workers = path.join(site, "assets", "javascripts", "workers")
const worker = fs.readdirSync(workers).find(name => name.startsWith("search.") && name.endsWith(".js"))
let listener
let answered
const self = { addEventListener: (_, handler) => { listener = handler }, postMessage: data => answered(data), console }
self.self = self
vm.runInContext(fs.readFileSync(path.join(workers, worker), "utf8"), vm.createContext(self))

const send = data => new Promise(resolve => { answered = resolve; listener({ data }) })

const main = async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"))
  await send({ type: 0, data: { ...index, options: { suggest: false } } })
  const results = []
  for (const query of JSON.parse(fs.readFileSync(0, "utf8"))) {
    const { data } = await send({ type: 2, data: query })
    results.push(data.items.map(page => page.map(section => section.location)))
  }
  process.stdout.write(JSON.stringify(results))
}
main()
