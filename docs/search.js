// Put before the worker of the site's search: a query finds the sections that have all of its words.
// Where no section has them all, any of them will do, as without this. A word with + or - in front, or words in quotes, are taken
// as the search understands them by itself.
(() => {
  const QUERY = 2
  const RESULT = 3
  const operators = /(^|\s)[+-]\w|(^|\s)"[^"]+"(\s|$)/
  const separator = /[^\p{L}\p{N}]+/u

  const all = query => {
    if (operators.test(query)) return query
    const words = query.toLowerCase().split(separator).filter(word => word && self.lunr.stopWordFilter(word))
    return words.map(word => `+${word}*`).join(" ")
  }

  const listen = self.addEventListener.bind(self)
  const post = self.postMessage.bind(self)
  self.addEventListener = (type, handler) => listen(type, async event => {
    const { type: kind, data: query } = event.data
    const required = kind === QUERY ? all(query) : ""
    if (required) {
      const found = await new Promise(resolve => {
        self.postMessage = resolve
        handler({ data: { type: QUERY, data: required } })
      })
      self.postMessage = post
      if (found.type !== RESULT || found.data.items.length || required === query) return post(found)
    }
    return handler(event)
  })
})()
