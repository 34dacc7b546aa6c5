// Browsers start no worker for a page that was opened from disk: a hidden frame runs its script.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      this.inner = new Promise((done) => {
        frame.onload = () => { // Firefox exchanges the document of a new frame before this
          const inner = frame.contentWindow;
          inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          const script = inner.document.createElement("script");
          script.onload = () => done(inner);
          script.src = url;
          inner.document.body.append(script);
        };
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.inner.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
