// GPU slices in JupyterLab and Notebook: the status of the notebook in front, a side panel, notices of the queue, sizes of one's own.
import { ILabShell, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, Notification, showErrorMessage } from '@jupyterlab/apputils';
import { ConsolePanel } from '@jupyterlab/console';
import { DocumentRegistry } from '@jupyterlab/docregistry';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookModel, INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IStatusBar } from '@jupyterlab/statusbar';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Widget } from '@lumino/widgets';
import { ask } from './api';
import { askForSize } from './dialogs';
import { RING, sliceIcon } from './icon';
import { IKernelChange } from './kernel_status';
import { Slices } from './model';
import { showPlainNames } from './names';
import { SlicesPanel } from './panel';
import { StatusItem } from './status';

const CUSTOM = 'gpukernel:custom-size';
const SHOW = 'gpukernel:show-slices';

function kernelOf(widget: Widget | null): string | undefined {
  if (widget instanceof NotebookPanel || widget instanceof ConsolePanel) {
    return widget.sessionContext.session?.kernel?.id;
  }
  return undefined;
}

/** Notifications of kernels that wait: one for each, which says where it stands and goes when the slice comes. */
class Notices {
  constructor(slices: Slices, nameOf: (kernel: string) => string) {
    this._slices = slices;
    this._nameOf = nameOf;
    slices.event.connect((_, change) => this._tell(change));
    // An event that came before this page listened is not told again.
    slices.changed.connect(() => slices.status.kernels.forEach(kernel => this._tell(kernel)));
  }

  private _tell(change: IKernelChange): void {
    const id = change.kernel_id;
    const shown = this._shown.get(id);
    const name = this._nameOf(id);
    const of = name ? ` (${name})` : '';
    if (change.state === 'waiting') {
      if (!change.position) {
        return; // the pool has not answered yet: most slices come at once
      }
      const message = `${change.words.charAt(0).toUpperCase()}${change.words.slice(1)}${of}`;
      if (shown) {
        Notification.update({ id: shown, message });
      } else {
        const cancel = { label: 'Cancel', callback: () => void this._slices.act(id, 'cancel') };
        this._shown.set(id, Notification.emit(message, 'in-progress', { autoClose: false, actions: [cancel] }));
      }
    } else if (shown) {
      this._shown.delete(id);
      if (change.state === 'live') {
        Notification.update({ id: shown, message: `${change.what} is here${of}`, type: 'success', autoClose: 4000, actions: [] });
      } else {
        Notification.dismiss(shown);
      }
    }
    if (change.notice && change.notice !== this._noticed.get(id)) {
      Notification.warning(`${change.notice}${of}`, { autoClose: false });
    }
    this._noticed.set(id, change.notice);
  }

  private _slices: Slices;
  private _nameOf: (kernel: string) => string;
  private _shown = new Map<string, string>();
  private _noticed = new Map<string, string>();
}

/** Notebook has no status bar: there the item stands in the notebook's toolbar. */
class InToolbar implements DocumentRegistry.IWidgetExtension<NotebookPanel, INotebookModel> {
  constructor(slices: Slices, open: () => void) {
    this._slices = slices;
    this._open = open;
  }

  createNew(panel: NotebookPanel): IDisposable {
    const item = new StatusItem(this._slices, () => kernelOf(panel), this._open);
    item.addClass('gpukernel-in-toolbar');
    panel.toolbar.insertBefore('kernelName', 'gpukernel', item);
    panel.sessionContext.kernelChanged.connect(() => void this._slices.refresh());
    return new DisposableDelegate(() => item.dispose());
  }

  private _slices: Slices;
  private _open: () => void;
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'gpukernel:plugin',
  description: 'GPU slices: status, side panel, queue, sizes of one’s own.',
  autoStart: true,
  optional: [ILabShell, IStatusBar, ILauncher, ICommandPalette, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    labShell: ILabShell | null,
    statusBar: IStatusBar | null,
    launcher: ILauncher | null,
    palette: ICommandPalette | null,
    notebooks: INotebookTracker | null
  ) => {
    const slices = new Slices(app.serviceManager.events);
    const nameOf = (kernel: string): string => {
      for (const session of app.serviceManager.sessions.running()) {
        if (session.kernel?.id === kernel) {
          return session.name || session.path;
        }
      }
      return '';
    };
    new Notices(slices, nameOf);

    const panel = new SlicesPanel(slices, nameOf, () => void app.commands.execute(CUSTOM));
    app.shell.add(panel, 'right', { rank: 650, type: 'GPU slices' });
    const open = () => app.shell.activateById(panel.id);

    if (statusBar && labShell) {
      const item = new StatusItem(slices, () => kernelOf(labShell.currentWidget), open);
      statusBar.registerStatusItem('gpukernel:status', {
        item,
        align: 'left',
        rank: 3,
        isActive: () => item.active,
        activeStateChanged: item.activeChanged
      });
      labShell.currentChanged.connect(() => item.refresh());
    } else {
      app.docRegistry.addWidgetExtension('Notebook', new InToolbar(slices, open));
    }
    app.serviceManager.sessions.runningChanged.connect(() => void slices.refresh());
    if (notebooks) {
      showPlainNames(notebooks);
    }
    notebooks?.currentChanged.connect((_, current) => {
      current?.sessionContext.kernelChanged.connect(() => void slices.refresh());
    });

    // JupyterLab looks for kernels once a minute; whoever looks at a launcher sees what is free now.
    // Three times for each occasion: at once, when the server's answer of before is no longer fresh enough for it, and when
    // a pool that was too slow for that one has answered.
    let looks = 0;
    let timer = 0;
    const look = () => {
      timer = 0;
      if (looks > 0 && !document.hidden && labShell?.currentWidget?.id.startsWith('launcher')) {
        looks -= 1;
        void app.serviceManager.kernelspecs.refreshSpecs();
        timer = window.setTimeout(look, 2500);
      }
    };
    const list = () => {
      looks = 3;
      if (timer === 0) {
        look();
      }
    };
    labShell?.currentChanged.connect(list);
    slices.event.connect(list);

    app.commands.addCommand(SHOW, { label: 'GPU slices', icon: sliceIcon, execute: open });
    app.commands.addCommand(CUSTOM, {
      label: args => (args['isPalette'] ? 'Start a Kernel on a GPU Slice of Custom Size…' : 'Your own size…'),
      caption: 'A GPU slice of your own size',
      icon: sliceIcon,
      execute: async () => {
        try {
          const size = await askForSize('Start a notebook');
          if (!size) {
            return;
          }
          const { name } = await ask<{ name: string }>('sizes', size);
          await app.serviceManager.kernelspecs.refreshSpecs();
          await app.commands.execute('notebook:create-new', { kernelName: name });
        } catch (error) {
          await showErrorMessage('No slice of that size', (error as Error).message);
        }
      }
    });
    // Beside the kernels, and like them with a picture of its own.
    launcher?.add({ command: CUSTOM, category: 'Notebook', kernelIconUrl: RING });
    palette?.addItem({ command: CUSTOM, category: 'GPU', args: { isPalette: true } });
    palette?.addItem({ command: SHOW, category: 'GPU' });
  }
};

export default plugin;
