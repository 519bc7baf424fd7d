// The launcher's words behind a kernel's name (“ — 655 MiB, 37 free”) belong to the launcher: a notebook that runs shows, and keeps
// in its file, the name alone.
import { ISessionContext, SessionContext } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { KernelSpec } from '@jupyterlab/services';
import { said } from './texts';

const WORDS = /\s— (?:[\d.,]+\s[MG]iB, .*|the\spool\sis\s.*)$/;

/** The plain names of those whose words have been translated. */
const plain = new Map<string, string>();

export function plainName(name: string): string {
  return plain.get(name) ?? name.replace(WORDS, '');
}

function translated(name: string): string {
  const found = WORDS.exec(name);
  if (!found) {
    return name;
  }
  // The server keeps a figure and its word on one line of a card by spaces that do not break.
  const words = found[0].replace(/\s/g, ' ').slice(' — '.length);
  const translation = said(words);
  if (translation === words) {
    return name;
  }
  const base = name.slice(0, found.index);
  const whole = `${base}${found[0].slice(0, ' — '.length)}${translation.replace(/(?<!,) /g, '\u00a0')}`;
  plain.set(whole, base);
  return whole;
}

/** Have the launcher's words in the display language; what the manager itself compares stays what the server says. */
export function translateNames(manager: KernelSpec.IManager): void {
  const getter = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(manager), 'specs')?.get;
  if (!getter) {
    return;
  }
  let told: KernelSpec.ISpecModels | null = null;
  let shown: KernelSpec.ISpecModels | null = null;
  Object.defineProperty(manager, 'specs', {
    configurable: true,
    get: () => {
      const specs: KernelSpec.ISpecModels | null = getter.call(manager);
      if (specs !== told) {
        told = specs;
        const named = Object.entries(specs?.kernelspecs ?? {}).map(([name, spec]) => [
          name,
          spec && { ...spec, display_name: translated(spec.display_name) }
        ]);
        shown = specs && { ...specs, kernelspecs: Object.fromEntries(named) };
      }
      return shown;
    }
  });
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
