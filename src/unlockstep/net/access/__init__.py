"""Who may do what: tokens and roles, certificates, limits, the gate before every request, and the audit trail."""
