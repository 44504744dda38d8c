"""Who may do what: API keys, roles, dashboard sessions, and secrets derived for runners."""
