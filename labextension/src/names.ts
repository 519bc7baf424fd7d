// The launcher's words behind a kernel's name (“ — 655 MiB, 37 free”) belong to the launcher: a notebook that runs shows, and keeps
// in its file, the name alone.
import { ISessionContext } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

const WORDS = /\s— (?:[\d,]+\s[MG]iB, .*|the\spool\sis\s.*)$/;

export function plainName(name: string): string {
  return name.replace(WORDS, '');
}

function showPlainName(context: ISessionContext): void {
  const prototype = Object.getPrototypeOf(context);
  const getter = Object.getOwnPropertyDescriptor(prototype, 'kernelDisplayName')?.get;
  if (getter) {
    Object.defineProperty(context, 'kernelDisplayName', {
      configurable: true,
      get: () => plainName(getter.call(context))
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

export function showPlainNames(notebooks: INotebookTracker): void {
  notebooks.widgetAdded.connect((_, panel) => {
    showPlainName(panel.sessionContext);
    keepPlain(panel);
  });
}
