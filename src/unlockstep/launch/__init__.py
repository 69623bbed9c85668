"""Starting the processes of a run and ending them. Decides nothing: see ``local`` and ``processes``."""
