// A JupyterLab extension without a build step: JupyterLab loads this file, asks the container below
// for "./extension", and activates the plugin. The server of the notebook replaces `notice.json`
// beside this file when the job is about to end.
(() => {
  const INTERVAL = 2000; // ms; the server waits a little longer for the pages to save
  const notice = new URL("notice.json", document.currentScript.src);

  async function read() {
    try {
      const answer = await fetch(notice, { cache: "no-store" });
      return answer.ok ? await answer.json() : {};
    } catch {
      return {}; // the tunnel is down, or the server has ended
    }
  }

  function watch(app) {
    const timer = setInterval(async () => {
      const { message } = await read();
      if (!message) return;
      clearInterval(timer);
      try {
        await app.commands.execute("docmanager:save-all");
      } finally {
        const options = { autoClose: false };
        await app.commands.execute("apputils:notify", { message, type: "warning", options });
      }
    }, INTERVAL);
  }

  const plugin = { id: "detslurm-notice:plugin", autoStart: true, activate: watch };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["detslurm-notice"] = {
    init: () => {},
    get: async () => () => ({ __esModule: true, default: plugin }),
  };
})();
