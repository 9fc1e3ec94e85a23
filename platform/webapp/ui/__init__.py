"""Pages: views, templates, template tags, style sheet and the built front end."""
