"""What people and CI systems read: HTML page, terminal, logs, Markdown, JUnit XML, receipt and export."""
