// GPU slices in JupyterLab and Notebook: the status of the notebook in front, a side panel, notices of the queue, sizes of one's own.
import { ILabShell, JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette, ISessionContext, IToolbarWidgetRegistry, IWidgetTracker, showErrorMessage } from '@jupyterlab/apputils';
import { ConsolePanel, IConsoleTracker } from '@jupyterlab/console';
import { DocumentRegistry } from '@jupyterlab/docregistry';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookModel, INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Kernel } from '@jupyterlab/services';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { Widget } from '@lumino/widgets';
import { Actions, IKernels } from './actions';
import { ask } from './api';
import { askForSize } from './dialogs';
import { RING, sliceIcon } from './icon';
import { Slices } from './model';
import { showPlainNames, translateNames } from './names';
import { extendNewMenu } from './new_menu';
import { Notices } from './notices';
import { SlicesPanel } from './panel';
import { StatusItem } from './status';
import { __, speak } from './texts';

const CUSTOM = 'gpukernel:custom-size';
const SHOW = 'gpukernel:show-slices';

function kernelOf(widget: Widget | null): string | undefined {
  if (widget instanceof NotebookPanel || widget instanceof ConsolePanel) {
    return widget.sessionContext.session?.kernel?.id;
  }
  return undefined;
}

/** Notebook has no status bar: there the item stands in the notebook's toolbar. */
class InToolbar implements DocumentRegistry.IWidgetExtension<NotebookPanel, INotebookModel> {
  constructor(slices: Slices, actions: Actions, open: () => void) {
    this._slices = slices;
    this._actions = actions;
    this._open = open;
  }

  createNew(panel: NotebookPanel): IDisposable {
    const item = new StatusItem(this._slices, this._actions, () => kernelOf(panel), this._open);
    item.addClass('gpukernel-in-toolbar');
    panel.toolbar.insertBefore('kernelName', 'gpukernel', item);
    panel.sessionContext.kernelChanged.connect(() => void this._slices.refresh());
    return new DisposableDelegate(() => item.dispose());
  }

  private _slices: Slices;
  private _actions: Actions;
  private _open: () => void;
}

/** The kernels of the notebooks and consoles that are open in this page. */
class OpenKernels implements IKernels {
  constructor(app: JupyterFrontEnd, trackers: (IWidgetTracker<NotebookPanel> | IWidgetTracker<ConsolePanel> | null)[]) {
    this._app = app;
    this._trackers = trackers;
  }

  nameOf(kernel: string): string {
    for (const session of this._app.serviceManager.sessions.running()) {
      if (session.kernel?.id === kernel) {
        return session.name || session.path;
      }
    }
    return '';
  }

  sessionOf(kernel: string): ISessionContext | undefined {
    for (const tracker of this._trackers) {
      const found = tracker?.find(one => one.sessionContext.session?.kernel?.id === kernel);
      if (found) {
        return found.sessionContext;
      }
    }
    return undefined;
  }

  connect(kernel: string): Kernel.IKernelConnection {
    return this._app.serviceManager.kernels.connectTo({ model: { id: kernel, name: '' } });
  }

  private _app: JupyterFrontEnd;
  private _trackers: (IWidgetTracker<NotebookPanel> | IWidgetTracker<ConsolePanel> | null)[];
}

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'gpukernel:plugin',
  description: 'GPU slices: status, side panel, queue, sizes of one’s own.',
  autoStart: true,
  optional: [ILabShell, IStatusBar, ILauncher, ICommandPalette, INotebookTracker, IConsoleTracker, ITranslator, IToolbarWidgetRegistry],
  activate: (
    app: JupyterFrontEnd,
    labShell: ILabShell | null,
    statusBar: IStatusBar | null,
    launcher: ILauncher | null,
    palette: ICommandPalette | null,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null,
    translator: ITranslator | null,
    toolbars: IToolbarWidgetRegistry | null
  ) => {
    speak(translator);
    translateNames(app.serviceManager.kernelspecs);
    const slices = new Slices(app.serviceManager.events);
    const kernels = new OpenKernels(app, [notebooks, consoles]);
    const nameOf = (kernel: string) => kernels.nameOf(kernel);
    const actions = new Actions(slices, kernels);
    const panel = new SlicesPanel(slices, actions, nameOf, () => void app.commands.execute(CUSTOM));
    app.shell.add(panel, 'right', { rank: 650, type: 'GPU slices' });
    const open = () => app.shell.activateById(panel.id);
    new Notices(slices, actions, nameOf, open);

    if (statusBar && labShell) {
      const item = new StatusItem(slices, actions, () => kernelOf(labShell.currentWidget), open);
      statusBar.registerStatusItem('gpukernel:status', {
        item,
        align: 'left',
        rank: 3,
        isActive: () => item.active,
        activeStateChanged: item.activeChanged
      });
      labShell.currentChanged.connect(() => item.refresh());
    } else {
      app.docRegistry.addWidgetExtension('Notebook', new InToolbar(slices, actions, open));
    }
    app.serviceManager.sessions.runningChanged.connect(() => void slices.refresh());
    showPlainNames(notebooks);
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

    app.commands.addCommand(SHOW, { label: __('GPU slices'), icon: sliceIcon, execute: open });
    app.commands.addCommand(CUSTOM, {
      label: args => (args['isPalette'] ? __('Start a Kernel on a GPU Slice of Custom Size…') : __('Your own size…')),
      caption: __('A GPU slice of your own size'),
      icon: sliceIcon,
      execute: async () => {
        try {
          const size = await askForSize(__('Start a notebook'));
          if (!size) {
            return;
          }
          const { name } = await ask<{ name: string }>('sizes', size);
          await app.serviceManager.kernelspecs.refreshSpecs();
          await app.commands.execute('notebook:create-new', { kernelName: name });
        } catch (error) {
          await showErrorMessage(__('No slice of that size'), (error as Error).message);
        }
      }
    });
    // Beside the kernels, and like them with a picture of its own.
    const notebook = (translator ?? nullTranslator).load('jupyterlab').__('Notebook'); // the launcher's own section
    launcher?.add({ command: CUSTOM, category: notebook, kernelIconUrl: RING });
    if (toolbars && !labShell) {
      void extendNewMenu(app, toolbars, slices.event, CUSTOM);
    }
    palette?.addItem({ command: CUSTOM, category: 'GPU', args: { isPalette: true } });
    palette?.addItem({ command: SHOW, category: 'GPU' });
  }
};

export default plugin;
