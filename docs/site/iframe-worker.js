// Lets the search run where the site is opened as files. Browsers refuse workers there, so this one is a hidden frame:
// the script of the worker runs in it, and messages go to and fro as events.
if (location.protocol === "file:") {
  const load = (frame, url) =>
    new Promise((done, failed) => {
      const script = frame.document.createElement("script")
      script.src = url
      script.onload = done
      script.onerror = failed
      frame.document.body.append(script)
    })

  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const element = document.createElement("iframe")
      element.hidden = true
      document.body.append(element)
      this.frame = element.contentWindow
      this.frame.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.frame.importScripts = (...urls) => Promise.all(urls.map(each => load(this.frame, each)))
      this.ready = load(this.frame, new URL(url, location.href).href)
    }

    postMessage(data) {
      this.ready.then(() => this.frame.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
  window.Worker = window.IFrameWorker
}
