// Pages that are opened from a folder may start no worker, which the search requires: this runs its script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.onmessage = null
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.frame = frame.contentWindow
      const inside = this.frame.document
      inside.open()
      inside.write("<!doctype html><body></body>")
      inside.close()
      this.frame.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      const load = source => new Promise((resolve, reject) => {
        const script = inside.createElement("script")
        script.src = source
        script.onload = resolve
        script.onerror = reject
        inside.body.appendChild(script)
      })
      this.frame.importScripts = (...sources) => sources.reduce((done, source) => done.then(() => load(source)), Promise.resolve())
      this.ready = load(url)
    }
    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new this.frame.MessageEvent("message", { data })))
    }
    terminate() {}
  }
}
