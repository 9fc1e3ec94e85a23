"""Views of the pages, one file a subject. Rules live in the services of the apps; what is said, in ``ui.wording``."""
