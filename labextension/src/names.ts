// The launcher's words behind a kernel's name (“ — 655 MiB, 37 free”) belong to the launcher: a notebook that runs shows, and keeps
// in its file, the name alone.
import { ISessionContext, SessionContext } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

const WORDS = /\s— (?:[\d.,]+\s[MG]iB, .*|the\spool\sis\s.*)$/;

export function plainName(name: string): string {
  return name.replace(WORDS, '');
}

/** Have every session show its kernel's name alone, from its first moment on: JupyterLab's status bar keeps what it reads first. */
function showPlainName(): void {
  const prototype = SessionContext.prototype;
  const getter = Object.getOwnPropertyDescriptor(prototype, 'kernelDisplayName')?.get;
  if (getter) {
    Object.defineProperty(prototype, 'kernelDisplayName', {
      configurable: true,
      get: function (this: ISessionContext) {
        return plainName(getter.call(this));
      }
    });
  }
}

function keepPlain(panel: NotebookPanel): void {
  const strip = () => {
    const model = panel.content.model;
    const spec = model?.getMetadata('kernelspec') as { display_name?: string } | undefined;
    if (model && spec?.display_name && plainName(spec.display_name) !== spec.display_name) {
      model.setMetadata('kernelspec', { ...spec, display_name: plainName(spec.display_name) });
    }
  };
  panel.content.model?.metadataChanged.connect(strip);
  panel.context.ready.then(() => {
    panel.content.model?.metadataChanged.connect(strip);
    strip();
  });
}

/** Have sessions show, and the files of these notebooks keep, names without the launcher's words. */
export function showPlainNames(notebooks: INotebookTracker | null): void {
  showPlainName();
  notebooks?.widgetAdded.connect((_, panel) => keepPlain(panel));
}
